"""Commit far apart, and take back what has become doubtful."""

import dataclasses
from typing import ClassVar

from ..registry import is_number, require
from .base import DECODERS, DecoderOutput, ranks
from .hierarchical import HierarchicalDecoder


@DECODERS.register("remasking")
@dataclasses.dataclass(frozen=True)
class RemaskingDecoder(HierarchicalDecoder):
    """The hierarchical rule over open and doubtful positions (dInfer's hierarchy decoding with remasking).

    A committed position of the block is doubtful if the best prediction for it, be it another token or the same, has a
    confidence below `remask_threshold`. Doubtful positions compete with the open ones: those that are chosen get their
    new token, all others are masked again. More positions are committed than taken back in every step, so a block of k
    positions takes at most k steps. The text is final, and streams, block by block.

    Args:
        remask_threshold (`float`, defaults to 0.4): confidence in (0, 1] below which a commit is taken back.
    """

    revocable: ClassVar[bool] = True
    remask_threshold: float = 0.4

    def __post_init__(self):
        super().__post_init__()
        value = self.remask_threshold
        require(is_number(value) and 0 < value <= 1, "remask_threshold", value, "a number in (0, 1]")

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        doubtful = state.editable & ~open_mask & (confidence < self.remask_threshold)
        eligible = open_mask | doubtful
        chosen = self._chosen(confidence, eligible, threshold)
        # Chosen ones rank first: probabilities do not exceed 1.
        rank = ranks(confidence + 2 * chosen, eligible)
        chosen = chosen | (eligible & (rank <= doubtful.sum(-1, keepdim=True)))
        return DecoderOutput(tokens, confidence, chosen, reopen=doubtful)
