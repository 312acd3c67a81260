"""Commit where a whole neighbourhood is confident."""

import dataclasses
import math
from typing import ClassVar

import torch

from ..registry import is_int, is_number, require
from .base import DECODERS, Decoder, DecoderOutput, require_threshold


@DECODERS.register("joint")
@dataclasses.dataclass(frozen=True)
class JointDecoder(Decoder):
    """Commits every position that is confident in a confident neighbourhood.

    Tokens that depend on each other mostly lie close together, and a prediction is worth little while what it depends
    on is open and uncertain: that of a token behind an insertion that may come or not, say, or of a carry's digit. So
    a position needs, besides its own confidence, a joint confidence of the open positions around it: their product, as
    if they were independent. (Distance stands in for dependency as in LocalLeap; methods such as DAWN, arXiv
    2602.06953, read it from attention maps, which fused kernels do not give away.)

    Args:
        threshold (`float`, defaults to 0.985): confidence in (0, 1] that a position needs.
        joint_threshold (`float`, defaults to 0.9): product in (0, 1] of the confidences of the open positions at most
            `radius` away, the position itself among them.
        radius (`int`, defaults to 6): positions to each side that make up the neighbourhood.
        certain (`float`, defaults to 0.9995): confidence in (0, 1] from which the neighbourhood does not matter.
        finish (`float` or None, defaults to 0.9975): geometric mean in (0, 1] of the confidences of all open positions
            of the block from which all of them are committed; None is off.
    """

    memoryless: ClassVar[bool] = True
    threshold: float = 0.985
    joint_threshold: float = 0.9
    radius: int = 6
    certain: float = 0.9995
    finish: float | None = 0.9975

    def __post_init__(self):
        super().__post_init__()
        require_threshold(self.threshold)
        for option in ("joint_threshold", "certain"):
            value = getattr(self, option)
            require(is_number(value) and 0 < value <= 1, option, value, "a number in (0, 1]")
        value = self.finish
        require(value is None or (is_number(value) and 0 < value <= 1), "finish", value, "None or a number in (0, 1]")
        require(is_int(self.radius) and self.radius >= 0, "radius", self.radius, "an int >= 0")

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        bar = self.threshold if threshold is None else threshold[:, None]
        logs = torch.where(open_mask, confidence.log(), 0.0).clamp(min=-1e4)
        together = windowed_sum(logs, self.radius)
        commit = (confidence >= bar) & (together >= math.log(self.joint_threshold)) | (confidence >= self.certain)
        if self.finish is not None:
            mean = logs.sum(-1) / open_mask.sum(-1).clamp(min=1)
            commit = commit | (mean >= math.log(self.finish))[:, None]
        return DecoderOutput(tokens, confidence, commit & open_mask)


def windowed_sum(values: torch.Tensor, radius: int) -> torch.Tensor:
    """Sum of the `values` `(R, k)` at most `radius` positions away from each."""
    radius = min(radius, values.shape[-1])
    return torch.nn.functional.pad(values, (radius, radius)).unfold(-1, 2 * radius + 1, 1).sum(-1)
