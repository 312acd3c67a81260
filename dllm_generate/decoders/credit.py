"""Commit what has been predicted again and again."""

import dataclasses
from typing import ClassVar

import torch

from ..registry import is_number, require
from .base import DECODERS, DecoderState
from .threshold import ThresholdDecoder


@dataclasses.dataclass
class CreditState(DecoderState):
    """Adds the credits of each position, in as many slots as a block has positions.

    Only tokens that were the prediction of a step ever have credit. A step commits at least one position of the block,
    so there are at most as many steps as positions, and `(R, k, k)` slots hold the whole `(R, k, V)` matrix.

    Attributes:
        token (`LongTensor (R, k, k)`): token of each slot; 0 where the slot is free.
        credit (`FloatTensor (R, k, k)`): its credit; 0 where the slot is free.
    """

    token: torch.Tensor = None  # type: ignore[assignment]
    credit: torch.Tensor = None  # type: ignore[assignment]


@DECODERS.register("credit")
@dataclasses.dataclass(frozen=True)
class CreditDecoder(ThresholdDecoder):
    """The threshold rule on scores that remember former predictions (CreditDecoding, arXiv 2510.06133).

    Each step, the most likely token of an open position earns `p ** gamma`; all credits of the block decay by `beta`
    before; `alpha * log(1 + credit)` is added to the logits. A token that stays on top is committed sooner.

    Args:
        alpha (`float`, defaults to 0.7): weight of the credit.
        beta (`float`, defaults to 0.8): decay per step, in [0, 1].
        gamma (`float`, defaults to 0.2): exponent of the probability.
    """

    memoryless: ClassVar[bool] = False
    alpha: float = 0.7
    beta: float = 0.8
    gamma: float = 0.2

    def __post_init__(self):
        super().__post_init__()
        require(is_number(self.alpha) and self.alpha >= 0, "alpha", self.alpha, "a number >= 0")
        require(is_number(self.beta) and 0 <= self.beta <= 1, "beta", self.beta, "a number in [0, 1]")
        require(is_number(self.gamma) and self.gamma >= 0, "gamma", self.gamma, "a number >= 0")

    def start(self, blocks, sampler):
        state = super().start(blocks, sampler)
        rows, length = state.step.numel(), blocks.columns.shape[-1]
        token = state.step.new_zeros(rows, length, length)
        return CreditState(**vars(state), token=token, credit=torch.zeros_like(token, dtype=torch.float32))

    def reset(self, state, rows):
        state.token = state.token.masked_fill(rows[:, None, None], 0)
        state.credit = state.credit.masked_fill(rows[:, None, None], 0.0)

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        scores = scores.float()
        self._earn(state, scores, open_mask, ran)
        fused = scores.scatter_add(-1, state.token, self.alpha * state.credit.log1p())
        return super().__call__(input_ids, fused, open_mask=open_mask, ran=ran, state=state, threshold=threshold)

    def _earn(self, state: CreditState, scores: torch.Tensor, open_mask: torch.Tensor, ran: torch.Tensor) -> None:
        top, token = scores.max(-1)
        earned = (top - scores.logsumexp(-1)).exp() ** self.gamma
        decayed = torch.where(ran[:, None, None], state.credit * self.beta, state.credit)
        held = (state.token == token[..., None]) & (state.credit > 0)
        # The slot of least credit is a free one, unless a schedule lets blocks run for more steps than positions.
        least = torch.arange(state.token.shape[-1], device=token.device) == state.credit.argmin(-1, keepdim=True)
        slot = torch.where(held.any(-1, keepdim=True), held, least) & (open_mask & ran[:, None])[..., None]
        state.credit = torch.where(slot & ~held, 0.0, decayed) + slot * earned[..., None]
        state.token = torch.where(slot, token[..., None], state.token)
