"""One comparison of everything: plain decoding, the published systems, and a causal model of the same size."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from ..bundled import bundled_model, load_as_it_is
from .contenders import CONTENDERS, Answer, Contender, answers_of
from .harness import Config, answer_room
from .statistics import Estimate, Interval, mean, paired_difference
from .tasks import Problem, check


@dataclasses.dataclass(frozen=True)
class Speed:
    """Medians over the runs of one setting.

    Attributes:
        tokens_per_second: text tokens over wall time.
        tokens_per_forward: text tokens over forwards.
        forwards: mean number of forwards of an answer.
        to_plain, to_causal: tokens per second over those of one token per step, and of the fastest causal row.
    """

    tokens_per_second: float
    tokens_per_forward: float
    forwards: float
    to_plain: float = 0.0
    to_causal: float = 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    """What a contender achieved.

    Attributes:
        contender: which.
        accuracy: share of right answers.
        difference: of it to the first contender's, on the same problems; None for that one.
        speeds: by number of forced tokens; 0 for answers that end by themselves.
        long_accuracy: share of right answers among the long problems; None if there are none.
    """

    contender: Contender
    accuracy: Estimate
    difference: Interval | None
    speeds: dict[int, Speed]
    long_accuracy: Estimate | None = None


def measure_headline(
    problems: Sequence[Problem],
    contenders: Sequence[Contender] = CONTENDERS,
    *,
    long_problems: Sequence[Problem] = (),
    forced: Sequence[int] = (256, 512),
    speed_problems: int = 5,
    slow_problems: int = 16,
    runs: int = 3,
    batch_size: int = 32,
    dtype: str = "bfloat16",
    progress: bool = False,
) -> list[Row]:
    """Accuracy in batches, without compiling; speed at batch 1.

    The contenders take turns in every run, so that all meet the same machine.

    Args:
        problems: held-out ones; what accuracy is measured on, and speed where answers end by themselves.
        contenders: the rows; the first is what others are compared with.
        long_problems: held-out ones with long answers, for a second accuracy.
        forced: lengths to which answers are forced (EOS banned), beside their own. The problems are the two whose
            answers are nearest to the length.
        speed_problems: of `problems`, how many serve for tokens per second, evenly spread.
        slow_problems: of `long_problems`, how many slow contenders decode, evenly spread.
        runs: measured passes, after one that is not.
        batch_size: rows of a call where accuracy is measured.
        dtype: of all weights.
        progress: show a bar.
    """
    answers = [answers_of(contender, dtype) for contender in contenders]
    _, tokenizer = load_as_it_is(bundled_model(contenders[0].model), dtype=dtype, device="cpu", trust_remote_code=False)
    room = {"max_new_tokens": answer_room(tokenizer, problems)}
    pools = {0: _spread(problems, speed_problems)}
    pools |= {n: _nearest([*problems, *long_problems], n, tokenizer) for n in forced}
    with tqdm(total=len(contenders) * (1 + (1 + runs) * len(pools)), disable=not progress) as bar:
        right, long_right = [], []
        for contender in contenders:
            bar.set_description(contender.name)
            # Batches come in many shapes, each of which would be compiled.
            answer = answers_of(dataclasses.replace(contender, compiled=False), dtype)
            right.append(_right(answer, problems, batch_size, room))
            some = _spread(long_problems, slow_problems) if contender.slow else long_problems
            more = {"max_new_tokens": answer_room(tokenizer, long_problems)} if some else {}
            long_right.append(_right(answer, some, batch_size, more))
            bar.update()
        speeds = {
            n: _speeds(contenders, answers, some, runs, {"min_new_tokens": n, "max_new_tokens": n} if n else room, bar)
            for n, some in pools.items()
        }
    return [
        Row(
            contender,
            mean([float(r) for r in right[i]]),
            paired_difference(right[0], right[i]) if i else None,
            {n: of[i] for n, of in speeds.items()},
            mean([float(r) for r in long_right[i]]) if long_right[i] else None,
        )
        for i, contender in enumerate(contenders)
    ]


def _spread(problems: Sequence[Problem], count: int) -> Sequence[Problem]:
    return problems[:: max(-(-len(problems) // count), 1)]


def _nearest(problems: Sequence[Problem], length: int, tokenizer: Any) -> Sequence[Problem]:
    """The two whose answers are nearest to a length: long answers are many forwards, and much alike."""
    lengths = tokenizer([p.answer for p in problems], add_special_tokens=False).input_ids
    order = sorted(range(len(problems)), key=lambda i: abs(len(lengths[i]) - length))
    return [problems[i] for i in order[:2]]


def _right(answer: Answer, problems: Sequence[Problem], batch_size: int, options: Config) -> list[bool]:
    batches = [problems[i : i + batch_size] for i in range(0, len(problems), batch_size)]
    return [check(p, r.text) for batch in batches for p, r in zip(batch, answer(batch, options), strict=True)]


def _speeds(
    contenders: Sequence[Contender],
    answers: Sequence[Answer],
    problems: Sequence[Problem],
    runs: int,
    options: Config,
    bar: tqdm,
) -> list[Speed]:
    passes: list[list[tuple[float, int, int]]] = [[] for _ in contenders]
    for run in range(1 + runs):
        for contender, answer, timings in zip(contenders, answers, passes, strict=True):
            bar.set_description(f"{contender.name}, {options['max_new_tokens']} tokens")
            # What is compiled is compiled for the length of every prompt; the others only have to be awake.
            some = problems if run or contender.compiled else problems[:1]
            replies = [answer([problem], options)[0] for problem in some]
            timings.append(tuple(map(sum, zip(*((r.seconds, r.tokens, r.forwards) for r in replies), strict=True))))  # type: ignore[arg-type]
            bar.update()
    measured = []
    for timings in passes:
        speed = statistics.median(tokens / seconds for seconds, tokens, _ in timings[1:])
        _, tokens, forwards = timings[-1]
        measured.append(Speed(speed, tokens / forwards, forwards / len(problems)))
    causal = [s.tokens_per_second for c, s in zip(contenders, measured, strict=True) if c.causal]
    return [
        dataclasses.replace(
            s,
            to_plain=s.tokens_per_second / measured[0].tokens_per_second,
            to_causal=s.tokens_per_second / max(causal) if causal else 0.0,
        )
        for s in measured
    ]
