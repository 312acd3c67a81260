"""Commit what is confident."""

import dataclasses
from typing import ClassVar, Literal, get_args

import torch

from ..registry import is_int, is_number, require
from .base import DECODERS, Decoder, DecoderOutput, ranking_score, ranks, require_threshold

Fallback = Literal["low_confidence", "margin", "entropy", "left_to_right"]


@DECODERS.register("threshold")
@dataclasses.dataclass(frozen=True)
class ThresholdDecoder(Decoder):
    """Commits every position whose confidence reaches a threshold (Fast-dLLM, arXiv 2505.22618).

    Args:
        threshold (`float`, defaults to 0.9): in (0, 1].
        strict (`bool`, defaults to `False`): ask for more than the threshold instead of at least the threshold.
        near_tie (`float`, defaults to 0): where no position reaches the threshold, commit all within this distance of
            the best one instead of that one alone (dInfer uses 1e-5, arXiv 2510.08666).
        minimal_topk (`int`, defaults to 1): commit at least so many of the best positions, reached or not.
        fallback (`str`, defaults to `"low_confidence"`): which position is committed where none reaches the threshold
            but one must be: that of the highest confidence, of the largest `"margin"` of the two most likely tokens, of
            the lowest `"entropy"`, or the first one (`"left_to_right"`).
    """

    memoryless: ClassVar[bool] = True
    threshold: float = 0.9
    strict: bool = False
    near_tie: float = 0.0
    minimal_topk: int = 1
    fallback: Fallback = "low_confidence"

    def __post_init__(self):
        super().__post_init__()
        require_threshold(self.threshold)
        require(isinstance(self.strict, bool), "strict", self.strict, "a bool")
        require(is_number(self.near_tie) and self.near_tie >= 0, "near_tie", self.near_tie, "a number >= 0")
        require(is_int(self.minimal_topk) and self.minimal_topk > 0, "minimal_topk", self.minimal_topk, "an int > 0")
        require(self.fallback in get_args(Fallback), "fallback", self.fallback, f"one of {list(get_args(Fallback))}")

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        bar = self.threshold if threshold is None else threshold[:, None]
        if self.near_tie:
            best = confidence.masked_fill(~open_mask, float("-inf")).amax(-1, keepdim=True)
            bar = torch.minimum(best - self.near_tie, torch.as_tensor(bar, device=best.device))
        reached = confidence > bar if self.strict else confidence >= bar
        if self.minimal_topk > 1:
            reached = reached | (ranks(confidence, open_mask) < self.minimal_topk)
        rank = None if self.fallback == "low_confidence" else ranking_score(self.fallback, scores, confidence)
        return DecoderOutput(tokens, confidence, reached & open_mask, rank=rank)
