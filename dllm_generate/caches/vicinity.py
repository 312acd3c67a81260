"""dInfer's vicinity refresh."""

import dataclasses

import torch

from ..registry import is_int, require
from .base import POLICIES, RefreshingPolicy


@POLICIES.register("vicinity")
@dataclasses.dataclass(frozen=True)
class VicinityCachePolicy(RefreshingPolicy):
    """Recomputes the block and its neighbourhood; keeps the rest (dInfer, arXiv 2510.08666).

    Args:
        prefix_look (`int`, defaults to 16): columns before the block that are recomputed, too.
        after_look (`int`, defaults to 16): columns behind it.
        warmup_steps (`int`, defaults to 0): recompute everything in the first steps of a row.
    """

    prefix_look: int = 16
    after_look: int = 16
    warmup_steps: int = 0

    def __post_init__(self):
        super().__post_init__()
        for option in ("prefix_look", "after_look", "warmup_steps"):
            value = getattr(self, option)
            require(is_int(value) and value >= 0, option, value, "an int >= 0")

    def window(self, canvas, blocks, horizon):
        lo = torch.maximum(blocks.start - self.prefix_look, canvas.start)
        return lo, torch.minimum(blocks.end + self.after_look, horizon)

    def refreshes(self, blocks, state):
        refresh = super().refreshes(blocks, state)
        return refresh | (state.steps < self.warmup_steps) if self.warmup_steps else refresh
