"""Look-ahead decoding: what a user may ask of it."""

import dataclasses
from typing import TYPE_CHECKING, Any

from .decoders import Decoder
from .registry import is_int, require, settings_of
from .schedules import Blocks

if TYPE_CHECKING:
    from .smoothing import Smoothing


@dataclasses.dataclass(frozen=True)
class Lookahead:
    """Hyper-parameters of look-ahead decoding.

    Every row is run together with `drafts` guesses of its later states, as further rows of the same forward. Where a
    guess turns out right, its own predictions are there already, and the row goes several steps at once.

    Args:
        drafts (`int`, defaults to 4): guesses per row; a forward has `1 + drafts` times as many rows.
        lossless (`bool`, defaults to `True`): a guess counts only if it is the very state that the decoder reaches
            next, so tokens, their steps and their confidences are those of a run without look-ahead (as FreeDave, arXiv
            2510.00294, and Spiffy, arXiv 2509.18085). The guesses are what the decoder would commit in the next steps
            if its scores stayed as they are. False: a guess counts if each of its tokens is one that the decoder
            commits now, or, of a guess that counts, would commit next. That takes fewer forwards, and gives another
            text now and then. The guesses are the most probable values of the positions that come next from the left.
    """

    drafts: int = 4
    lossless: bool = True

    def __post_init__(self) -> None:
        value = self.drafts
        require(is_int(value) and value > 0, "lookahead['drafts']", value, "an int > 0")
        require(isinstance(self.lossless, bool), "lookahead['lossless']", self.lossless, "a bool")

    @classmethod
    def of(cls, option: bool | dict[str, Any] | None) -> "Lookahead | None":
        """Makes what the option `lookahead` asks for: True is the default, a dict gives hyper-parameters.

        Raises:
            ValueError: for any other value, and for unknown keys.
        """
        return settings_of(cls, "lookahead", option)

    def validate(self, decoder: Decoder, blocks: Blocks, smoothing: "Smoothing | None") -> None:
        """Raises ValueError where look-ahead cannot serve a call."""
        if smoothing is not None:
            raise ValueError("`lookahead` is on, but must be off with `smoothing`, whose state follows one text only.")
        if decoder.revocable:
            raise ValueError(f"`lookahead` is on, but must be off with `decoder` {decoder.name!r}, which takes back.")
        if self.lossless and not decoder.memoryless:
            raise ValueError(
                f"`lookahead['lossless']` is True, but must be False with `decoder` {decoder.name!r}, which remembers "
                "the scores of former steps."
            )
        if blocks.columns.shape[1] > 1:
            raise ValueError("`lookahead` is on, but must be off with a `schedule` of several blocks at once.")
