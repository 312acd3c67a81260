"""The fastest way to decode that keeps the quality of one token per step."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..families import family_of
from ..registry import is_int, is_number, require
from ..text import Reply
from .candidates import check_candidates, default_candidates, reference_config
from .harness import Config, answer_room, label, replies_to
from .prompts import Prompt
from .statistics import paired_difference
from .tasks import Problem
from .trials import Trial, Tuning

METRICS = ("tpf", "speed")
DEFAULT_ROOM = 128


@dataclasses.dataclass
class _Search:
    """Decodes prompts for trials, and compares these with the reference.

    Attributes:
        answer: `(texts, config) -> (replies, seconds)`.
        allowed: the loss that a trial may have, as a share.
        certain: whether the whole interval must stay within it.
    """

    answer: Callable[[Sequence[str], Config], tuple[list[Reply], float]]
    prompts: list[Prompt]
    metric: str
    allowed: float
    certain: bool
    bar: tqdm

    def __post_init__(self) -> None:
        self.reference: Trial | None = None

    def run(
        self, reference: Config, configs: Sequence[Config], screen: int, keep: int
    ) -> tuple[list[Trial], list[Trial]]:
        """Returns the trials that saw all prompts, reference first, and the rest."""
        first = self.extend(Trial(reference), len(self.prompts))
        self.reference = first
        screened = [self.extend(Trial(config), min(screen, len(self.prompts))) for config in configs]
        held = finished = 0
        for trial in sorted(screened, key=self.rank, reverse=True):
            if finished >= keep and held:
                break
            if self.finish(trial):
                finished += 1
                held += self.holds(trial)
        seen = [trial for trial in screened if len(trial.replies) == len(self.prompts)]
        rest = [trial for trial in screened if len(trial.replies) < len(self.prompts)]
        return [first, *sorted(seen, key=self.rank, reverse=True)], rest

    def extend(self, trial: Trial, end: int) -> Trial:
        """Decodes the prompts up to `end` that the trial has not seen yet."""
        begin = len(trial.replies)
        new = self.prompts[begin:end]
        if not new:
            return trial
        self.bar.set_description(label(trial.config))
        replies, seconds = self.answer([prompt.text for prompt in new], trial.config)
        trial.replies += replies
        trial.seconds += seconds
        reference = self.reference or trial
        expected = [reply.text for reply in reference.replies[begin:end]]
        trial.right += [
            found.text == text if prompt.is_right is None else prompt.is_right(found.text)
            for prompt, text, found in zip(new, expected, replies, strict=True)
        ]
        trial.difference = paired_difference(reference.right[:end], trial.right)
        return trial

    def finish(self, trial: Trial) -> bool:
        """Extends a trial in doubling steps to all prompts; False if it loses too much on the way."""
        while trial.difference.high >= -self.allowed:
            seen = len(trial.replies)
            if seen == len(self.prompts):
                return True
            end = min(2 * seen, len(self.prompts))
            if self.bar.total is not None:
                self.bar.total += end - seen
            self.extend(trial, end)
        return False

    def holds(self, trial: Trial) -> bool:
        """Whether a trial stays within the loss."""
        difference = trial.difference.low if self.certain else trial.difference.value
        # A loss of exactly the allowed points is allowed, whatever the last bit says.
        return difference >= -self.allowed - 1e-9

    def rank(self, trial: Trial) -> tuple[float, float]:
        """What is larger for the faster one."""
        return trial.rank(self.metric)


def tune(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    candidates: Sequence[Config] | None = None,
    *,
    loss: float = 0.5,
    metric: str = "tpf",
    certain: bool = False,
    max_new_tokens: int | None = None,
    batch_size: int = 8,
    screen: int = 64,
    keep: int = 8,
    seed: int = 0,
    progress: bool = False,
) -> Tuning:
    """Finds the fastest configuration that stays within a loss of accuracy, or of agreement.

    Every candidate decodes the first prompts. Those whose whole 95% interval lies beyond the loss are out; the others
    go on, the fastest first, over two, four ... times as many under the same rule, until `keep` have seen all prompts
    and one of these stays within the loss. Decoding is greedy.

    Args:
        model, tokenizer: with our `generate`; [`dllm_generate.bundled.load`] gives both.
        prompts: all with `is_right`, or none: then what equals one token per step, letter by letter, is right.
        candidates: options of generate; default [`default_candidates`].
        loss: points of accuracy or agreement that the winner may lose to one token per step.
        metric: `"tpf"`, tokens per forward; or `"speed"`, tokens per second here and at this batch size.
        certain: ask that the whole 95% interval stays within the loss, not only the estimate.
        max_new_tokens: default what the longest answer of bundled tasks needs, else 128.
        batch_size, screen, keep: prompts decoded together, prompts of the first part, candidates to measure on all.
        seed: set before every candidate.
        progress: show a bar.

    Raises:
        ValueError: an argument that is not allowed, or a candidate that generate refuses. No forward has run then.

    Example:
        >>> tune(model, tokenizer, task_prompts(n=20), loss=1.0).winner.config
    """
    _check(prompts, loss, metric, {"batch_size": batch_size, "screen": screen, "keep": keep})
    options = {"max_new_tokens": max_new_tokens or _room(tokenizer, prompts), "do_sample": False}
    reference, configs = _configs(model, tokenizer, prompts, candidates, options)
    with tqdm(
        total=len(prompts) + len(configs) * min(screen, len(prompts)), disable=not progress, unit="prompt"
    ) as bar:

        def answer(texts: Sequence[str], config: Config) -> tuple[list[Reply], float]:
            torch.manual_seed(seed)
            return replies_to(model, tokenizer, texts, batch_size, {**options, **config}, bar)

        search = _Search(answer, list(prompts), metric, loss / 100, certain, bar)
        (first, *trials), rejected = search.run(reference, configs, screen, keep)
    winner = max([first, *(trial for trial in trials if search.holds(trial))], key=search.rank)
    judged_by = "agreement" if prompts[0].is_right is None else "accuracy"
    return Tuning(first, trials, rejected, winner, judged_by, loss, metric, certain)


def _check(prompts: Sequence[Prompt], loss: float, metric: str, counts: dict[str, int]) -> None:
    require(is_number(loss) and 0 <= loss <= 100, "loss", loss, "a number of points from 0 to 100")
    require(metric in METRICS, "metric", metric, f"one of {list(METRICS)}")
    for name, value in counts.items():
        require(is_int(value) and value > 0, name, value, "an int > 0")
    if len({prompt.is_right is None for prompt in prompts}) != 1:
        raise ValueError("`prompts` must hold at least one, and all of them must have `is_right`, or none.")


def _room(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> int:
    known = [Problem("", prompt.text, prompt.answer) for prompt in prompts if prompt.answer is not None]
    return answer_room(tokenizer, known) if len(known) == len(prompts) else DEFAULT_ROOM


def _configs(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    candidates: Sequence[Config] | None,
    options: Config,
) -> tuple[Config, list[Config]]:
    """The reference, and the candidates that generate takes. Raises the error of one that a user named."""
    family = family_of(model, model.generation_config, tokenizer)
    reference = reference_config(family, model.generation_config)
    configs = default_candidates(family, options["max_new_tokens"]) if candidates is None else list(candidates)
    refusals = check_candidates(model, tokenizer, [p.text for p in prompts], [reference, *configs], **options)
    for refusal in refusals[:1] if candidates is None else refusals:
        if refusal is not None:
            raise refusal
    return reference, [config for config, refusal in zip(configs, refusals[1:], strict=True) if refusal is None]
