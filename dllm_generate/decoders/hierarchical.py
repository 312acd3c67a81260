"""Commit far apart."""

import dataclasses
from typing import ClassVar

import torch

from ..registry import is_number, require
from .base import DECODERS, Decoder, DecoderOutput


@DECODERS.register("hierarchical")
@dataclasses.dataclass(frozen=True)
class HierarchicalDecoder(Decoder):
    """Commits the best position of every run of open ones, so that what is decided together lies apart.

    From every maximal run of open positions, the most confident one is committed if it exceeds `low_threshold`;
    besides, all that exceed `threshold`, and the most confident position of the block (dInfer, arXiv 2510.08666).

    Args:
        threshold (`float` or None, defaults to 0.9): confidence above which any position is committed; None is off.
        low_threshold (`float` or None, defaults to 0.4): confidence that the best of a run must exceed; None is off.
        ties (`bool`, defaults to `False`): commit all positions that share the maximum of their run, instead of the
            left-most one.
    """

    memoryless: ClassVar[bool] = True
    threshold: float | None = 0.9
    low_threshold: float | None = 0.4
    ties: bool = False

    def __post_init__(self):
        super().__post_init__()
        for option in ("threshold", "low_threshold"):
            value = getattr(self, option)
            allowed = value is None or (is_number(value) and 0 < value <= 1)
            require(allowed, option, value, "None or a number in (0, 1]")
        require(isinstance(self.ties, bool), "ties", self.ties, "a bool")

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        return DecoderOutput(tokens, confidence, self._chosen(confidence, open_mask, threshold))

    def _chosen(self, confidence: torch.Tensor, eligible: torch.Tensor, threshold: torch.Tensor | None) -> torch.Tensor:
        chosen = best_of_runs(confidence, eligible, self.ties)
        if self.low_threshold is not None:
            chosen = chosen & (confidence > self.low_threshold)
        bar = self.threshold if threshold is None else threshold[:, None]
        if bar is not None:
            chosen = chosen | (confidence > bar)
        return chosen & eligible


def best_of_runs(score: torch.Tensor, open_mask: torch.Tensor, ties: bool = False) -> torch.Tensor:
    """The best position of every maximal run of open ones.

    Args:
        score: `(R, k)` float.
        open_mask: `(R, k)`.
        ties: mark every position that equals the maximum of its run, not only the left-most one.

    Returns:
        `(R, k)` bool.
    """
    before = torch.nn.functional.pad(open_mask[:, :-1], (1, 0))
    run = (open_mask & ~before).long().cumsum(-1)
    inside = score.masked_fill(~open_mask, float("-inf"))
    top = torch.full_like(score, float("-inf"))
    top = torch.nn.functional.pad(top, (0, 1), value=float("-inf")).scatter_reduce(1, run, inside, "amax")
    best = open_mask & (inside == top.gather(1, run))
    if ties:
        return best
    count = best.long().cumsum(-1)
    first = torch.full_like(count, count.shape[-1] + 1)
    first = torch.nn.functional.pad(first, (0, 1), value=count.shape[-1] + 1)
    first = first.scatter_reduce(1, run, torch.where(best, count, count.shape[-1] + 1), "amin")
    return best & (count == first.gather(1, run))
