"""Commit what is confident, and no more than planned."""

import dataclasses
from typing import ClassVar

import torch

from ..registry import require
from .base import DECODERS, DecoderOutput, ranks, require_threshold
from .fixed import FixedDecoder, FixedState


@DECODERS.register("paced")
@dataclasses.dataclass(frozen=True)
class PacedDecoder(FixedDecoder):
    """Commits positions that reach a threshold, never ahead of the plan of [`FixedDecoder`].

    The `confidence_threshold` of Fast-dLLM for Dream (arXiv 2505.22618). A step considers as many of the best positions
    as the plan has committed by its end, less those that are committed already; the best one is taken in any case. Once
    the planned steps are over, a step considers all that is left.

    Args:
        threshold (`float`, defaults to 0.9): confidence in (0, 1] that must be reached.
        steps, steps_per_block, ranking: as for [`FixedDecoder`]. `ranking` decides who is considered.
    """

    memoryless: ClassVar[bool] = True
    threshold: float = 0.9

    def __post_init__(self):
        super().__post_init__()
        require_threshold(self.threshold)
        require(self.quota == "masks", "quota", self.quota, "'masks' with the decoder 'paced'")

    @property
    def ranks_by_confidence(self) -> bool:
        return True

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        self._begin(state, open_mask, ran)
        considered = self._by_now(state) - self._taken(state, open_mask)
        bar = self.threshold if threshold is None else threshold[:, None]
        best = ranks(self._score(scores, confidence, state), open_mask) < considered[:, None]
        return DecoderOutput(tokens, confidence, open_mask & best & (confidence >= bar))

    def _taken(self, state: FixedState, open_mask: torch.Tensor) -> torch.Tensor:
        """Positions `(R,)` that have been committed before this step."""
        return state.masks - open_mask.sum(-1)

    def _by_now(self, state: FixedState) -> torch.Tensor:
        """Positions `(R,)` that the plan has committed by the end of this step."""
        steps = state.step + 1
        if self.steps is None and self.steps_per_block is None:
            return torch.minimum(steps, state.masks)
        planned = self._planned(state)
        total = steps * (state.masks // planned) + torch.minimum(steps, state.masks % planned)
        return torch.where(steps >= planned, state.masks, total)
