"""Commit a planned number of positions."""

import dataclasses
import math
from typing import ClassVar, Literal, get_args

import torch

from ..registry import is_int, require
from .base import DECODERS, Decoder, DecoderOutput, DecoderState, ranks

Ranking = Literal["low_confidence", "random", "margin", "entropy"]


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
            logits; `"margin"`: the difference of the two most likely tokens; `"entropy"`: the lowest entropy.
    """

    memoryless: ClassVar[bool] = True
    steps: int | None = None
    steps_per_block: int | None = None
    ranking: Ranking = "low_confidence"

    def __post_init__(self):
        super().__post_init__()
        for option in ("steps", "steps_per_block"):
            value = getattr(self, option)
            require(value is None or (is_int(value) and value > 0), option, value, "None or an int > 0")
        if self.steps is not None and self.steps_per_block is not None:
            raise ValueError(f"`steps` is {self.steps} and `steps_per_block` is {self.steps_per_block}: set only one.")
        require(self.ranking in get_args(Ranking), "ranking", self.ranking, f"one of {list(get_args(Ranking))}")

    @property
    def ranks_by_confidence(self) -> bool:
        return self.ranking == "low_confidence"

    @property
    def needs_noise(self) -> bool:  # type: ignore[override]
        return self.ranking == "random"

    def validate(self, family, config):
        blocks = math.ceil((config.max_new_tokens or 1) / (config.block_length or 1)) if config.block_length else 1
        if self.steps is not None and self.steps < blocks and not config.infill:
            raise ValueError(
                f"`steps` is {self.steps}, but must be at least the number of blocks, {blocks} (`max_new_tokens` "
                f"{config.max_new_tokens}, `block_length` {config.block_length})."
            )

    def start(self, blocks, sampler):
        state = super().start(blocks, sampler)
        return FixedState(**vars(state), masks=torch.zeros_like(state.step))

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        rank = ranks(self._score(scores, confidence, state), open_mask)
        left = open_mask.sum(-1)
        state.masks = torch.where(ran & (state.step == 0), left, state.masks)
        return DecoderOutput(tokens, confidence, open_mask & (rank < self._quota(state, left)[:, None]))

    def _quota(self, state: FixedState, left: torch.Tensor) -> torch.Tensor:
        """Positions to commit in this step, `(R,)`. The last planned step takes all that are left."""
        if self.steps is None and self.steps_per_block is None:
            return torch.ones_like(left)
        planned = self._planned(state)
        base, extra = state.masks // planned, state.masks % planned
        quota = base + (state.step < extra)
        return torch.where(state.step >= planned - 1, left, quota)

    def _planned(self, state: FixedState) -> torch.Tensor:
        if self.steps is None:
            return torch.full_like(state.step, self.steps_per_block)  # type: ignore[arg-type]
        share, rest = self.steps // state.block_count, self.steps % state.block_count
        return (share + (state.block < rest)).clamp(min=1)

    def _score(self, scores: torch.Tensor, confidence: torch.Tensor, state: FixedState) -> torch.Tensor:
        if self.ranking == "low_confidence":
            return confidence
        if self.ranking == "random":
            return state.noise.uniform(stream=1)  # type: ignore[union-attr]
        probabilities = scores.float().softmax(-1)
        if self.ranking == "margin":
            top = probabilities.topk(2, dim=-1).values
            return top[..., 0] - top[..., 1]
        return torch.xlogy(probabilities, probabilities).sum(-1)
