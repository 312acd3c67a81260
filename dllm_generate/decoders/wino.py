"""Commit generously, and take back what the rest does not confirm."""

import dataclasses
from typing import ClassVar

from ..registry import is_int, is_number, require
from .base import DECODERS, Decoder, DecoderOutput, ranks, require_threshold


@DECODERS.register("wino")
@dataclasses.dataclass(frozen=True)
class WinoDecoder(Decoder):
    """Drafts with a low threshold, and verifies with a high one (WINO, arXiv 2507.18578: wide in, narrow out).

    Every position whose confidence exceeds `threshold` is committed, the best ones if they are many. The same forward
    verifies the tokens that were committed before: what has less than `verify_threshold` in the eyes of a model that
    sees all but this token is masked again, the worst first and always fewer than are committed. So a block of k
    positions takes at most k steps. The text is final, and streams, block by block.

    Args:
        threshold (`float`, defaults to 0.6): confidence in (0, 1] that a draft must exceed.
        verify_threshold (`float`, defaults to 0.9): probability in (0, 1] below which a commit is taken back.
        share (`float`, defaults to 0.7): part of the open positions, in (0, 1], that a step commits at most.
        at_least (`int`, defaults to 5): the bound that `share` sets is no lower than this,
        at_most (`int`, defaults to 20): and no higher than this.
    """

    revocable: ClassVar[bool] = True
    verifies: ClassVar[bool] = True
    threshold: float = 0.6
    verify_threshold: float = 0.9
    share: float = 0.7
    at_least: int = 5
    at_most: int = 20

    def __post_init__(self):
        super().__post_init__()
        require_threshold(self.threshold)
        for option in ("verify_threshold", "share"):
            value = getattr(self, option)
            require(is_number(value) and 0 < value <= 1, option, value, "a number in (0, 1]")
        require(is_int(self.at_least) and self.at_least > 0, "at_least", self.at_least, "an int > 0")
        enough = is_int(self.at_most) and self.at_most >= self.at_least
        require(enough, "at_most", self.at_most, f"an int >= `at_least`, {self.at_least}")

    def validate(self, family, config):
        if family.attention != "bidirectional":
            raise ValueError(
                f"`decoder` is 'wino', which needs bidirectional attention, but the family {family.name!r} has "
                f"`attention` {family.attention!r}."
            )
        if family.logits_shift:
            raise ValueError(
                f"`decoder` is 'wino', but `logits_shift` of the family {family.name!r} is True and must be False: "
                "where a position is predicted by its neighbour, no mask can stand in for the token to verify."
            )

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        bar = self.threshold if threshold is None else threshold[:, None]
        ready = open_mask & (confidence > bar)
        room = (open_mask.sum(-1).double() * self.share).long().clamp(self.at_least, self.at_most)
        commit = ready & (ranks(confidence, ready) < room[:, None])
        doubtful = state.editable & ~open_mask & (state.verification < self.verify_threshold)
        fewer = commit.sum(-1, keepdim=True) - 1
        reopen = doubtful & (ranks(-state.verification, doubtful) < fewer)
        return DecoderOutput(tokens, confidence, commit, reopen)
