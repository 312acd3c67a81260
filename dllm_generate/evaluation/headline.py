"""One comparison of everything: plain decoding, the published systems, and a causal model of the same size."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm
from transformers import CompileConfig

from ..bundled import bundled_model, load, load_as_it_is
from ..text import Reply, decode, encode, reply, user
from .harness import Config, answer_room
from .statistics import Estimate, Interval, mean, paired_difference
from .tasks import Problem, check

BLOCK_CAUSAL: Config = {"attention": "block_causal", "cache_policy": "block"}
D2F: Config = {"block_add_threshold": 0.1, "decoded_token_threshold": 0.5}


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to decode, and the model that it is for.

    Attributes:
        name: of the row.
        model: folder in `model_cards/`.
        options: of generate.
        causal: decoded by transformers' own generate, one token per forward.
    """

    name: str
    model: str
    options: Config
    causal: bool = False


CONTENDERS: tuple[Contender, ...] = (
    Contender("LLaDA, one token per step", "dllm-tiny", {"decoder": "fixed", "cache_policy": "none"}),
    Contender("Fast-dLLM, threshold", "dllm-tiny", {"decoder": "threshold", "threshold": 0.9, "cache_policy": "none"}),
    Contender("Fast-dLLM, prefix", "dllm-tiny", {"decoder": "threshold", "threshold": 0.9, "cache_policy": "prefix"}),
    Contender("Fast-dLLM, dual", "dllm-tiny", {"decoder": "threshold", "threshold": 0.9, "cache_policy": "dual"}),
    Contender(
        "dInfer, credit, vicinity", "dllm-tiny", {"decoder": "credit", "threshold": 0.9, "cache_policy": "vicinity"}
    ),
    Contender(
        "dInfer, hierarchical, smoothing, vicinity",
        "dllm-tiny",
        {"decoder": "hierarchical", "threshold": 0.9, "smoothing": True, "cache_policy": "vicinity"},
    ),
    Contender(
        "block diffusion",
        "dllm-tiny-block",
        {"decoder": "threshold", "threshold": 0.9, "schedule": "block_diffusion", **BLOCK_CAUSAL},
    ),
    Contender(
        "D2F, pipelined",
        "dllm-tiny-d2f",
        {"decoder": "threshold", "threshold": 0.9, "block_length": 16, "schedule": "pipelined", "schedule_config": D2F}
        | BLOCK_CAUSAL,
    ),
    Contender(
        "trajectory-distilled",
        "dllm-tiny-td",
        {"decoder": "threshold", "threshold": 0.98, "block_length": 64, "cache_policy": "dual"},
    ),
    Contender("autoregressive, dynamic cache", "dllm-tiny-ar", {}, causal=True),
    Contender("autoregressive, static cache", "dllm-tiny-ar", {"cache_implementation": "static"}, causal=True),
    Contender(
        "autoregressive, static, compiled",
        "dllm-tiny-ar",
        {"cache_implementation": "static", "compiled": True},
        causal=True,
    ),
)


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
    """

    contender: Contender
    accuracy: Estimate
    difference: Interval | None
    speeds: dict[int, Speed]


Answer = Callable[[Sequence[Problem], Config], list[Reply]]


def answers_of(contender: Contender, dtype: str) -> Answer:
    """Loads a contender; returns a function from problems and further options of generate to replies, as one batch."""
    folder = bundled_model(contender.model)
    if not contender.causal:
        model, tokenizer = load(folder, dtype=dtype, device="cpu")
        return lambda problems, more: reply(
            model, tokenizer, [user(p.prompt) for p in problems], **{**contender.options, **more}
        )
    model, tokenizer = load_as_it_is(folder, dtype=dtype, device="cpu", trust_remote_code=False)
    options = dict(contender.options)
    if options.pop("compiled", False):
        # transformers compiles on a CPU only when told so.
        options["compile_config"] = CompileConfig(mode="default", fullgraph=True, dynamic=False)
        options["compile_config"]._compile_all_devices = True
    return lambda problems, more: _causal_replies(model, tokenizer, problems, {**options, **more})


def _causal_replies(model: Any, tokenizer: Any, problems: Sequence[Problem], options: Config) -> list[Reply]:
    inputs = encode(tokenizer, [user(p.prompt) for p in problems])
    width = inputs["input_ids"].shape[1]
    begin = time.perf_counter()
    rows = model.generate(**inputs, do_sample=False, **options)[:, width:].tolist()
    seconds = time.perf_counter() - begin
    eos = tokenizer.eos_token_id
    made = []
    for row in rows:
        ended = eos in row
        text = row[: row.index(eos)] if ended else row
        made.append(
            Reply(decode(tokenizer, text, {eos}), len(text), len(text) + ended, seconds, "eos" if ended else "length")
        )
    return made


def measure_headline(
    problems: Sequence[Problem],
    contenders: Sequence[Contender] = CONTENDERS,
    *,
    forced: Sequence[int] = (256, 512),
    speed_problems: int = 5,
    runs: int = 3,
    batch_size: int = 32,
    dtype: str = "bfloat16",
    progress: bool = False,
) -> list[Row]:
    """Accuracy in batches, speed at batch 1; the contenders take turns in every run, so that all meet the same machine.

    Args:
        problems: held-out ones; what accuracy is measured on.
        contenders: the rows; the first is what others are compared with.
        forced: lengths to which answers are forced (EOS banned), beside their own.
        speed_problems: of `problems`, how many serve for tokens per second, evenly spread; two at forced lengths.
        runs: measured passes, after one that is not.
        batch_size: rows of a call where accuracy is measured.
        dtype: of all weights.
        progress: show a bar.
    """
    answers = [answers_of(contender, dtype) for contender in contenders]
    _, tokenizer = load_as_it_is(bundled_model(contenders[0].model), dtype=dtype, device="cpu", trust_remote_code=False)
    room = {"max_new_tokens": answer_room(tokenizer, problems)}
    lengths = {0: room, **{n: {"min_new_tokens": n, "max_new_tokens": n} for n in forced}}
    total = len(contenders) * (1 + (1 + runs) * len(lengths))
    with tqdm(total=total, disable=not progress) as bar:
        right = []
        for contender, answer in zip(contenders, answers, strict=True):
            bar.set_description(contender.name)
            right.append(_right(answer, problems, batch_size, room))
            bar.update()
        some = _spread(problems, speed_problems)
        speeds = {
            # A long answer is many forwards, and all are much alike.
            n: _speeds(contenders, answers, _spread(some, 2) if n else some, runs, more, bar)
            for n, more in lengths.items()
        }
    return [
        Row(
            contender,
            mean([float(r) for r in right[i]]),
            paired_difference(right[0], right[i]) if i else None,
            {n: of[i] for n, of in speeds.items()},
        )
        for i, contender in enumerate(contenders)
    ]


def _spread(problems: Sequence[Problem], count: int) -> Sequence[Problem]:
    return problems[:: -(-len(problems) // count)]


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
            some = problems if run or contender.causal else problems[:1]
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
