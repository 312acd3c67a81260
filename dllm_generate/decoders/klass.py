"""Commit what is confident and has stopped changing."""

import dataclasses
from typing import ClassVar, Literal, get_args

import torch

from ..registry import is_int, is_number, require
from .base import DECODERS, DecoderOutput, ranks, require_threshold
from .fixed import FixedDecoder, FixedState

Unmask = Literal["all", "max_confidence", "min_kl"]


@dataclasses.dataclass
class KlassState(FixedState):
    """Adds the last distribution of each position, and how far it moved.

    Attributes:
        last (`FloatTensor (R, k, V)` or None): log-probabilities of the step before; as large as the scores.
        divergence (`FloatTensor (R, k, history)`): the latest divergences, infinite where there was no step yet.
    """

    last: torch.Tensor | None = None
    divergence: torch.Tensor = None  # type: ignore[assignment]


@DECODERS.register("klass")
@dataclasses.dataclass(frozen=True)
class KlassDecoder(FixedDecoder):
    """Commits every position whose prediction is confident and stable (KLASS, arXiv 2511.05664).

    Stable: the divergence KL(now || step before) was below `kl_threshold` in each of the last `history` steps of the
    block. Where no position of a row is both, the quota of [`FixedDecoder`] is committed.

    Args:
        threshold (`float`, defaults to 0.9): confidence that must be exceeded, in (0, 1].
        kl_threshold (`float`, defaults to 0.01): in nats.
        history (`int`, defaults to 2): number of steps.
        unmask (`str`, defaults to `"all"`): which of the ready positions are committed: `"all"`, the one of
            `"max_confidence"`, or the one of `"min_kl"`.
    """

    memoryless: ClassVar[bool] = False
    threshold: float = 0.9
    kl_threshold: float = 0.01
    history: int = 2
    unmask: Unmask = "all"

    def __post_init__(self):
        super().__post_init__()
        require_threshold(self.threshold)
        require(
            is_number(self.kl_threshold) and self.kl_threshold > 0, "kl_threshold", self.kl_threshold, "a number > 0"
        )
        require(is_int(self.history) and self.history > 0, "history", self.history, "an int > 0")
        require(self.unmask in get_args(Unmask), "unmask", self.unmask, f"one of {list(get_args(Unmask))}")

    def start(self, blocks, sampler):
        state = super().start(blocks, sampler)
        shape = (state.step.numel(), blocks.columns.shape[-1], self.history)
        divergence = torch.full(shape, float("inf"), device=state.step.device)
        return KlassState(**vars(state), divergence=divergence)

    def reset(self, state, rows):
        state.divergence = state.divergence.masked_fill(rows[:, None, None], float("inf"))

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        planned = super().__call__(input_ids, scores, open_mask=open_mask, ran=ran, state=state)
        self._observe(state, scores, ran)
        bar = self.threshold if threshold is None else threshold[:, None]
        stable = (state.divergence < self.kl_threshold).all(-1)
        ready = open_mask & stable & (planned.confidence > bar)
        commit = torch.where(ready.any(-1, keepdim=True), self._unmasked(ready, planned, state), planned.commit)
        return dataclasses.replace(planned, commit=commit)

    def _unmasked(self, ready: torch.Tensor, planned: DecoderOutput, state: KlassState) -> torch.Tensor:
        if self.unmask == "all":
            return ready
        score = planned.confidence if self.unmask == "max_confidence" else -state.divergence[..., -1]
        return ready & (ranks(score, ready) == 0)

    def _observe(self, state: KlassState, scores: torch.Tensor, ran: torch.Tensor) -> None:
        now = scores.float().log_softmax(-1).clamp(min=-1e4)
        last = torch.zeros_like(now) if state.last is None else state.last
        moved = (now.exp() * (now - last)).sum(-1)
        # In its first step of a block a row has nothing to compare with.
        moved = torch.where(state.step[:, None] > 0, moved, float("inf"))
        shifted = torch.cat([state.divergence[..., 1:], moved[..., None]], -1)
        state.divergence = torch.where(ran[:, None, None], shifted, state.divergence)
        state.last = torch.where(ran[:, None, None], now, last)
