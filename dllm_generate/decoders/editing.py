"""Commit what is confident, and correct what was committed."""

import dataclasses
from typing import ClassVar

import torch

from ..registry import is_int, is_number, require
from .base import DECODERS, Decoder, DecoderOutput, DecoderState, ranks, require_threshold


@dataclasses.dataclass
class EditingState(DecoderState):
    """Adds `rounds` `(R,)`: steps that the row has run in a block of which nothing was open."""

    rounds: torch.Tensor = None  # type: ignore[assignment]


@DECODERS.register("editing")
@dataclasses.dataclass(frozen=True)
class EditingDecoder(Decoder):
    """Joint unmasking and editing of tokens (LLaDA2.1, arXiv 2602.08676).

    Commits every open position above `threshold`, and at least `at_least` of the best. In every step a committed
    position of the block gets the token that the model now predicts there, if that is another one with a confidence
    above `editing_threshold`. When nothing is open any more, the block is looked at again until a step edits nothing,
    at most `max_post_steps` times. The text is final, and streams, block by block.

    Args:
        threshold (`float`, defaults to 0.95): confidence in (0, 1] that must be exceeded.
        editing_threshold (`float`, defaults to 0.9): confidence in [0, 1] that a replacement must exceed.
        max_post_steps (`int`, defaults to 16): steps of a block without an open position; 0 is none.
        at_least (`int`, defaults to 1): positions to commit in a step, confident or not.
    """

    revocable: ClassVar[bool] = True
    threshold: float = 0.95
    editing_threshold: float = 0.9
    max_post_steps: int = 16
    at_least: int = 1

    def __post_init__(self):
        super().__post_init__()
        require_threshold(self.threshold)
        value = self.editing_threshold
        require(is_number(value) and 0 <= value <= 1, "editing_threshold", value, "a number in [0, 1]")
        for option, least in (("max_post_steps", 0), ("at_least", 1)):
            value = getattr(self, option)
            require(is_int(value) and value >= least, option, value, f"an int >= {least}")

    def start(self, blocks, sampler):
        state = super().start(blocks, sampler)
        return EditingState(**vars(state), rounds=torch.zeros_like(state.step))

    def reset(self, state, rows):
        state.rounds = torch.where(rows, 0, state.rounds)

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        bar = self.threshold if threshold is None else threshold[:, None]
        sure = open_mask & (confidence > bar)
        best = open_mask & (ranks(confidence, open_mask) < self.at_least)
        commit = torch.where((sure.sum(-1) >= self.at_least)[:, None], sure, best)
        edit = state.editable & ~open_mask & (tokens != input_ids) & (confidence > self.editing_threshold)

        whole = ~open_mask.any(-1)
        state.rounds = state.rounds + (whole & ran)
        looked_at = ~edit.any(-1) | (state.rounds >= self.max_post_steps)
        settled = torch.where(whole, looked_at, self.max_post_steps == 0)
        return DecoderOutput(tokens, confidence, commit, edit=edit, settled=settled)
