"""Dream's timesteps."""

import dataclasses
from typing import ClassVar, Literal, get_args

import torch

from ..registry import is_number, require
from .base import DECODERS, DecoderOutput, ranks
from .fixed import FixedDecoder, FixedState

DreamRanking = Literal["origin", "low_confidence", "margin", "entropy"]


@DECODERS.register("dream")
@dataclasses.dataclass(frozen=True)
class DreamDecoder(FixedDecoder):
    """Commits a share of the open positions that follows from timesteps between 1 and `eps` (Dream, arXiv 2508.15487).

    With `t` falling evenly from 1 to `eps` over the steps, a step commits `1 - t_next / t` of what is open in the row,
    rounded down, and the last step all that is left. Timesteps whose share is below one position are passed over, since
    their forwards would change nothing.

    Args:
        steps, steps_per_block: as for [`FixedDecoder`]. Unset, as many as the block has open positions.
        eps (`float`, defaults to 1e-3): last timestep, in (0, 1).
        ranking (`str`, defaults to `"entropy"`): which positions come first. `"origin"`: every open position on its own
            with the probability of the share, so that a step may commit nothing; `"low_confidence"` (Dream's
            maskgit_plus): the highest confidence; `"margin"` (topk_margin): the difference of the two most likely
            tokens; `"entropy"`: the lowest entropy.
        ranking_temperature (`float`, defaults to 0): Dream's alg_temp. Above 0, positions are drawn without replacement
            from the softmax of their score over this; not for `"origin"`.
    """

    rankings: ClassVar[tuple[str, ...]] = get_args(DreamRanking)
    eps: float = 1e-3
    ranking: DreamRanking = "entropy"  # type: ignore[assignment]
    ranking_temperature: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        require(is_number(self.eps) and 0 < self.eps < 1, "eps", self.eps, "a number in (0, 1)")
        value = self.ranking_temperature
        require(is_number(value) and value >= 0, "ranking_temperature", value, "a number >= 0")
        require(not value or self.ranking != "origin", "ranking_temperature", value, "0 with the ranking 'origin'")
        require(self.quota == "masks", "quota", self.quota, "'masks' with the decoder 'dream'")

    @property
    def needs_noise(self) -> bool:  # type: ignore[override]
        return self.ranking == "origin" or self.ranking_temperature > 0

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        left = open_mask.sum(-1)
        state.masks = torch.where(ran & (state.step == 0), left, state.masks)
        if self.ranking == "origin":
            commit = open_mask & (state.noise.uniform(stream=1) < self._share(state, state.step)[:, None])
            return DecoderOutput(tokens, confidence, commit, waits=~commit.any(-1))
        score = self._score(scores, confidence, state)
        if self.ranking_temperature > 0:
            # The largest sums of logits and Gumbel noise are such a draw.
            noise = state.noise.uniform(stream=1).clamp(min=1e-12)
            score = score / self.ranking_temperature - (-noise.log()).log()
        return DecoderOutput(
            tokens, confidence, open_mask & (ranks(score, open_mask) < self._due(state, left)[:, None])
        )

    def _due(self, state: FixedState, left: torch.Tensor) -> torch.Tensor:
        """Positions `(R,)` to commit in this step, where `left` `(R,)` are open."""
        # The first timestep at which the share of what is left comes to a position: a function of `left` alone.
        fruitful = (self._steps(state) / (1 - self.eps) - left).ceil().long()
        share = self._share(state, torch.maximum(state.step, fruitful))
        return (left * share).long().clamp(min=1)

    def _steps(self, state: FixedState) -> torch.Tensor:
        unplanned = self.steps is None and self.steps_per_block is None
        return (state.masks if unplanned else self._planned(state)).clamp(min=1).double()

    def _share(self, state: FixedState, step: torch.Tensor) -> torch.Tensor:
        """Share `(R,)` of the open positions that timestep number `step` commits; 1 in the last one."""
        steps = self._steps(state)
        fall = (1 - self.eps) / steps
        return torch.where(step >= steps - 1, 1.0, fall / (1 - step * fall).clamp(min=self.eps))
