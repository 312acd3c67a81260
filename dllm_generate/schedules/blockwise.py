"""Semi-autoregressive decoding, block by block."""

import dataclasses

import torch

from ..canvas import Canvas
from ..registry import is_int, require
from .base import SCHEDULES, Blocks, Schedule


@SCHEDULES.register("blockwise")
@dataclasses.dataclass(frozen=True)
class BlockwiseSchedule(Schedule):
    """One block at a time, from left to right, while the model sees the whole canvas (LLaDA, arXiv 2502.09992).

    The block in work is the first one that still has an open position, so every row advances at its own pace and fixed
    text between open positions is skipped. A block longer than the answer decodes the whole canvas at once.

    Args:
        block_length (`int`, defaults to 32): number of positions of a block. The last block of a row may be shorter.
        early_stop (`bool`, defaults to `True`): end a row as soon as an EOS is committed and nothing before it is
            open. The text is the same without it; only forwards behind the EOS are saved.
    """

    block_length: int = 32
    early_stop: bool = True

    def __post_init__(self):
        require(is_int(self.block_length) and self.block_length > 0, "block_length", self.block_length, "an int > 0")
        require(isinstance(self.early_stop, bool), "early_stop", self.early_stop, "a bool")

    def validate(self, family, config):
        if family.attention != "bidirectional":
            raise ValueError(
                f"`schedule` is 'blockwise', which needs bidirectional attention, but the family {family.name!r} has "
                f"`attention` {family.attention!r}."
            )

    def active(self, canvas: Canvas) -> Blocks:
        length = min(self.block_length, canvas.width - 1)
        index = (canvas.first_open - canvas.origin).div(length, rounding_mode="floor")
        start = canvas.origin + index * length
        end = torch.minimum(start + length, canvas.end)
        columns = start[:, None] + torch.arange(length, device=start.device)
        columns = torch.where(columns < end[:, None], columns, 0)
        live = ~canvas.finished[:, None]
        return Blocks(
            columns=columns[:, None],
            index=index[:, None],
            live=live,
            force=live,
            start=start,
            end=end,
            visible_end=canvas.end,
            count=(canvas.end - canvas.origin + length - 1).div(length, rounding_mode="floor"),
        )

    def advance(self, canvas: Canvas, ran: torch.Tensor) -> None:
        done = canvas.first_open >= canvas.width
        if self.early_stop and canvas.eos_token_ids:
            done = done | (canvas.first_eos < canvas.first_open)
        canvas.finished = canvas.finished | (done & ran)
