"""No cache."""

import dataclasses
from typing import ClassVar

import torch

from .base import POLICIES, CachePolicy, Plan


@POLICIES.register("none")
@dataclasses.dataclass(frozen=True)
class NoCachePolicy(CachePolicy):
    """Every step recomputes the whole visible canvas, and nothing is kept. Exact."""

    uses_cache: ClassVar[bool] = False

    def plan(self, canvas, blocks, state):
        horizon = self.horizon(blocks)
        return Plan(canvas.start, horizon, horizon, refresh=torch.ones_like(canvas.finished))
