"""Commit what is confident, and no less than planned."""

import dataclasses
from typing import ClassVar

import torch

from .base import DECODERS, require_threshold
from .fixed import FixedDecoder


@DECODERS.register("dynamic")
@dataclasses.dataclass(frozen=True)
class DynamicDecoder(FixedDecoder):
    """Commits every position above a threshold; where these are fewer than the step's quota, the quota instead.

    The `low_confidence_dynamic` of SDAR (arXiv 2510.06303), and the sampler of LLaDA2.0 (arXiv 2512.15745). Without
    `steps` and `steps_per_block` the quota is one position.

    Args:
        threshold (`float`, defaults to 0.9): confidence in (0, 1] that must be exceeded.
        steps, steps_per_block, ranking, quota: as for [`FixedDecoder`]. `ranking` decides who fills the quota.
    """

    memoryless: ClassVar[bool] = True
    threshold: float = 0.9

    def __post_init__(self):
        super().__post_init__()
        require_threshold(self.threshold)

    @property
    def ranks_by_confidence(self) -> bool:
        return True

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        planned, quota = self._as_planned(scores, open_mask, ran, state)
        bar = self.threshold if threshold is None else threshold[:, None]
        sure = open_mask & (planned.confidence > bar)
        enough = (sure.sum(-1) >= quota)[:, None]
        return dataclasses.replace(planned, commit=torch.where(enough, sure, planned.commit))
