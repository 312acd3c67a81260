"""Accuracy, tokens per forward and speed of decoding configurations on held-out problems."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..text import Reply, reply, user
from .statistics import Estimate, Interval, mean, paired_difference, ratio
from .tasks import STANDARD_LEVEL, Problem, check, heldout_problems

Config = dict[str, Any]

DEFAULT_CONFIGS: tuple[Config, ...] = (
    {"decoder": "fixed"},
    {"decoder": "threshold", "threshold": 0.9},
    {"decoder": "threshold", "threshold": 0.9, "cache_policy": "prefix"},
    {"decoder": "threshold", "threshold": 0.9, "cache_policy": "dual"},
    {"decoder": "factor", "cache_policy": "dual"},
)


@dataclasses.dataclass(frozen=True)
class Judged:
    """A reply and whether it is right."""

    problem: Problem
    reply: Reply
    correct: bool


@dataclasses.dataclass(frozen=True)
class Score:
    """Figures over a set of problems.

    Attributes:
        n: number of problems.
        accuracy: share of right answers.
        tokens_per_forward: text tokens (no EOS, no pad) over forwards, both summed over the problems.
        forwards: mean number of forwards of a problem.
    """

    n: int
    accuracy: Estimate
    tokens_per_forward: Estimate
    forwards: Estimate

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> "Score":
        """Sums up."""
        forwards = [float(j.reply.forwards) for j in judged]
        tokens = [float(j.reply.tokens) for j in judged]
        return cls(len(judged), mean([float(j.correct) for j in judged]), ratio(tokens, forwards), mean(forwards))


@dataclasses.dataclass(frozen=True)
class Result:
    """What one configuration achieved.

    Attributes:
        config: the options of generate.
        judged: one entry per problem, in the order of the problems.
        seconds: wall time of all calls of generate.
        difference: accuracy minus that of the first configuration on the same problems; None for the first one.
    """

    config: Config
    judged: list[Judged]
    seconds: float
    difference: Interval | None = None

    @property
    def overall(self) -> Score:
        """Over all problems."""
        return Score.of(self.judged)

    @property
    def tasks(self) -> dict[str, Score]:
        """By task."""
        names = dict.fromkeys(j.problem.task for j in self.judged)
        return {name: Score.of([j for j in self.judged if j.problem.task == name]) for name in names}

    @property
    def tokens_per_second(self) -> float:
        """Text tokens of all problems per second."""
        return sum(j.reply.tokens for j in self.judged) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the figures, and of every problem its prompt, text and counts."""
        answers = [
            {
                "task": j.problem.task,
                "prompt": j.problem.prompt,
                "text": j.reply.text,
                "correct": j.correct,
                "tokens": j.reply.tokens,
                "forwards": j.reply.forwards,
                "finish_reason": j.reply.finish_reason,
            }
            for j in self.judged
        ]
        return {
            "config": self.config,
            "overall": dataclasses.asdict(self.overall),
            "tasks": {name: dataclasses.asdict(score) for name, score in self.tasks.items()},
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
            "difference": None if self.difference is None else dataclasses.asdict(self.difference),
            "answers": answers,
        }


def evaluate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    configs: Sequence[Config] = DEFAULT_CONFIGS,
    *,
    tasks: Sequence[str] | None = None,
    n: int = 100,
    batch_size: int = 1,
    seed: int = 0,
    level: int = STANDARD_LEVEL,
    problems: Sequence[Problem] | None = None,
    progress: bool = False,
    on_result: Callable[[list[Result]], None] | None = None,
) -> list[Result]:
    """Decodes the same held-out problems with every configuration.

    Args:
        model: with our `generate`; [`dllm_generate.bundled.load`] gives one.
        tokenizer: of the model.
        configs: options of generate, one dict per configuration. `max_new_tokens` defaults to what the longest
            reference answer needs, in whole blocks of 32.
        tasks: names of tasks; default those with short answers.
        n: problems per task.
        batch_size: rows of a call of generate. Speed depends on it; greedy answers do not, in float32.
        seed: of the problems, and of sampling.
        level: of the problems, 0 (short answers) to 3 (long ones).
        problems: instead of `tasks`, `n` and `level`.
        progress: show a bar.
        on_result: called with all results so far whenever a configuration is done.

    Returns:
        One [`Result`] per configuration, in order.

    Raises:
        ValueError: an unknown task, level or option, or an empty list.

    Example:
        >>> results = evaluate(model, tokenizer, [{"decoder": "fixed"}, {"decoder": "threshold"}], n=20)
        >>> [round(result.overall.accuracy.value, 2) for result in results]
    """
    problems = list(problems if problems is not None else heldout_problems(tasks, n, seed, level))
    if not problems or not configs:
        raise ValueError(f"There are {len(problems)} problems and {len(configs)} configurations: nothing to evaluate.")
    room = answer_room(tokenizer, problems)
    results: list[Result] = []
    with tqdm(total=len(problems) * len(configs), disable=not progress, unit="problem") as bar:
        for config in configs:
            bar.set_description(label(config))
            torch.manual_seed(seed)
            judged, seconds = _decode(model, tokenizer, problems, batch_size, {"max_new_tokens": room, **config}, bar)
            results.append(Result(config, judged, seconds, _difference(results, judged)))
            if on_result is not None:
                on_result(results)
    return results


def _decode(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    batch_size: int,
    options: Config,
    bar: tqdm,
) -> tuple[list[Judged], float]:
    replies, seconds = replies_to(model, tokenizer, [p.prompt for p in problems], batch_size, options, bar)
    return [Judged(p, r, check(p, r.text)) for p, r in zip(problems, replies, strict=True)], seconds


def replies_to(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    batch_size: int,
    options: Config,
    bar: tqdm,
) -> tuple[list[Reply], float]:
    """Answers prompts in batches.

    Args:
        options: of generate.
        bar: is moved on by the prompts of every batch.

    Returns:
        The replies, and the seconds that all calls of generate took.
    """
    replies: list[Reply] = []
    seconds = 0.0
    for begin in range(0, len(prompts), batch_size):
        batch = reply(model, tokenizer, [user(p) for p in prompts[begin : begin + batch_size]], **options)
        replies += batch
        seconds += batch[0].seconds
        bar.update(len(batch))
    return replies, seconds


def _difference(results: Sequence[Result], judged: Sequence[Judged]) -> Interval | None:
    if not results:
        return None
    return paired_difference([j.correct for j in results[0].judged], [j.correct for j in judged])


def answer_room(tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], block: int = 32) -> int:
    """Tokens of the longest reference answer and an EOS, rounded up to whole blocks."""
    longest = max(len(tokenizer(p.answer, add_special_tokens=False).input_ids) for p in problems)
    return -(-(longest + 1) // block) * block


def label(config: Config) -> str:
    """A short name for a configuration: `threshold 0.9 dual`, `factor factor=2 none`."""
    plain = ("decoder", "threshold", "cache_policy", "schedule")
    words = []
    for key, value in config.items():
        inner = value if isinstance(value, dict) else {key: value}
        words += [str(entry) if name in plain else f"{name}={entry}" for name, entry in inner.items()]
    return " ".join(words) or "default"
