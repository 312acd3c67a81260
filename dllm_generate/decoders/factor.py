"""Commit as many as their joint confidence allows."""

import dataclasses
from typing import ClassVar

import torch

from ..registry import is_number, require
from .base import DECODERS, Decoder, DecoderOutput, ranks


@DECODERS.register("factor")
@dataclasses.dataclass(frozen=True)
class FactorDecoder(Decoder):
    """Commits the n most confident positions while the n-th is confident enough for n (Fast-dLLM, arXiv 2505.22618).

    With confidences `c_1 >= c_2 >= ...`, position j passes if `c_j >= 1 - factor / (j + 1)`, and the first one always
    does; the first failure ends the walk.

    Args:
        factor (`float`, defaults to 1.0): larger commits more.
        take_last (`bool`, defaults to `True`): where only the last open position fails, commit it too, as the
            published code does.
    """

    memoryless: ClassVar[bool] = True
    factor: float = 1.0
    take_last: bool = True

    def __post_init__(self):
        super().__post_init__()
        require(is_number(self.factor) and self.factor > 0, "factor", self.factor, "a number > 0")
        require(isinstance(self.take_last, bool), "take_last", self.take_last, "a bool")

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        rank = ranks(confidence, open_mask)
        passes = (confidence >= 1 - self.factor / (rank + 2)) | (rank == 0)
        count = open_mask.sum(-1, keepdim=True)
        first_failure = torch.where(open_mask & ~passes, rank, count).amin(-1, keepdim=True)
        if self.take_last:
            first_failure = torch.where(first_failure == count - 1, count, first_failure)
        return DecoderOutput(tokens, confidence, open_mask & (rank < first_failure))
