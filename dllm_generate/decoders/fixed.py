"""Commit a planned number of positions."""

import dataclasses
from typing import ClassVar, Literal, get_args

import torch

from ..registry import is_int, require
from .base import DECODERS, Decoder, DecoderOutput, DecoderState, ranking_score, ranks

Ranking = Literal["low_confidence", "random", "margin", "entropy", "left_to_right", "span"]
Quota = Literal["masks", "block"]


@dataclasses.dataclass
class FixedState(DecoderState):
    """Adds `masks` `(R,)`: open positions of the block when the row first ran in it."""

    masks: torch.Tensor = None  # type: ignore[assignment]


@DECODERS.register("fixed")
@dataclasses.dataclass(frozen=True)
class FixedDecoder(Decoder):
    """Spreads the open positions of a block evenly over a given number of steps (LLaDA, arXiv 2502.09992).

    Args:
        steps (`int`, *optional*): steps over the whole answer, shared out among the blocks of a row. At least one per
            block. Unset together with `steps_per_block`, one position is committed per step.
        steps_per_block (`int`, *optional*): steps of every block; excludes `steps`.
        ranking (`str`, defaults to `"low_confidence"`): which positions come first. `"low_confidence"`: the highest
            confidence (so named by LLaDA for what it leaves masked); `"random"`: noise that knows nothing of the
            logits; `"margin"`: the difference of the two most likely tokens; `"entropy"`: the lowest entropy;
            `"left_to_right"`: the order of the text; `"span"`: the same, but what is committed already behind the first
            open position counts towards the quota (JetEngine, a server of SDAR).
        quota (`str`, defaults to `"masks"`): what is spread over the steps: the positions that were open when the block
            began, or `"block"`, all of its positions, as block-diffusion models do (SDAR, arXiv 2510.06303). Then the
            quotas of late steps may be 0. For block-causal models only.
    """

    memoryless: ClassVar[bool] = True
    rankings: ClassVar[tuple[str, ...]] = get_args(Ranking)
    steps: int | None = None
    steps_per_block: int | None = None
    ranking: Ranking = "low_confidence"
    quota: Quota = "masks"

    def __post_init__(self):
        super().__post_init__()
        for option in ("steps", "steps_per_block"):
            value = getattr(self, option)
            require(value is None or (is_int(value) and value > 0), option, value, "None or an int > 0")
        if self.steps is not None and self.steps_per_block is not None:
            raise ValueError(f"`steps` is {self.steps} and `steps_per_block` is {self.steps_per_block}: set only one.")
        for option, names in (("ranking", self.rankings), ("quota", get_args(Quota))):
            require(getattr(self, option) in names, option, getattr(self, option), f"one of {list(names)}")

    @property
    def ranks_by_confidence(self) -> bool:
        return self.ranking == "low_confidence"

    @property
    def needs_noise(self) -> bool:  # type: ignore[override]
        return self.ranking == "random"

    def validate(self, family, config):
        if self.quota == "block" and family.attention != "block_causal":
            # Elsewhere a block may be cut to the width of the batch, on which no row is to depend.
            raise ValueError(
                f"`quota` is 'block', but must be 'masks' for the family {family.name!r} with `attention` "
                f"{family.attention!r}: only the blocks of block-causal models all have one length."
            )

    def validate_blocks(self, count):
        if self.steps is not None and self.steps < (most := int(count.max())):
            raise ValueError(
                f"`steps` is {self.steps}, but must be at least the number of blocks, {most}. It follows from "
                "`max_new_tokens` and `block_length`, and from where blocks begin in a row."
            )

    def start(self, blocks, sampler):
        state = super().start(blocks, sampler)
        return FixedState(**vars(state), masks=torch.zeros_like(state.step))

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        return self._as_planned(scores, open_mask, ran, state)[0]

    def _as_planned(
        self, scores: torch.Tensor, open_mask: torch.Tensor, ran: torch.Tensor, state: FixedState
    ) -> tuple[DecoderOutput, torch.Tensor]:
        """What the plan says, and the quota `(R,)` of this step."""
        tokens, confidence = state.predict(scores)
        quota = self._begin(state, open_mask, ran)
        if self.ranking == "span":
            rank = torch.arange(open_mask.shape[-1], device=open_mask.device) - open_mask.int().argmax(-1, keepdim=True)
        else:
            rank = ranks(self._score(scores, confidence, state), open_mask)
        waits = None if self.quota == "masks" else quota == 0
        return DecoderOutput(tokens, confidence, open_mask & (rank < quota[:, None]), waits=waits), quota

    def _begin(self, state: FixedState, open_mask: torch.Tensor, ran: torch.Tensor) -> torch.Tensor:
        """Notes what is spread over the steps of a block; returns the quota `(R,)` of this step."""
        whole = open_mask.sum(-1) if self.quota == "masks" else torch.full_like(state.step, open_mask.shape[-1])
        state.masks = torch.where(ran & (state.step == 0), whole, state.masks)
        return self._quota(state, open_mask.shape[-1])

    def _quota(self, state: FixedState, length: int) -> torch.Tensor:
        """Positions to commit in this step, `(R,)`. The last planned step takes all of the `length` that are left."""
        if self.steps is None and self.steps_per_block is None:
            return torch.ones_like(state.step)
        planned = self._planned(state)
        base, extra = state.masks // planned, state.masks % planned
        quota = base + (state.step < extra)
        return torch.where(state.step >= planned - 1, length, quota)

    def _planned(self, state: FixedState) -> torch.Tensor:
        if self.steps is None:
            return torch.full_like(state.step, self.steps_per_block)  # type: ignore[arg-type]
        share, rest = self.steps // state.block_count, self.steps % state.block_count
        return (share + (state.block < rest)).clamp(min=1)

    def _score(self, scores: torch.Tensor, confidence: torch.Tensor, state: FixedState) -> torch.Tensor:
        if self.ranking == "random":
            return state.noise.uniform(stream=1)  # type: ignore[union-attr]
        return ranking_score(self.ranking, scores, confidence)
