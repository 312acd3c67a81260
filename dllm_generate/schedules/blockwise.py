"""Semi-autoregressive decoding, block by block."""

import dataclasses
from typing import Literal, get_args

import torch

from ..canvas import Canvas
from ..registry import is_int, require
from .base import SCHEDULES, Blocks, Schedule

Align = Literal["prompt", "position", "end"]


@dataclasses.dataclass(frozen=True)
class WholeCanvasSchedule(Schedule):
    """Base of the schedules under which the model sees the whole canvas in every step."""

    block_length: int = 32
    early_stop: bool = True

    def __post_init__(self):
        require(is_int(self.block_length) and self.block_length > 0, "block_length", self.block_length, "an int > 0")
        require(isinstance(self.early_stop, bool), "early_stop", self.early_stop, "a bool")

    def validate(self, family, config):
        if family.attention != "bidirectional":
            raise ValueError(
                f"`schedule` is {self.name!r}, which needs bidirectional attention, but the family {family.name!r} has "
                f"`attention` {family.attention!r}."
            )

    def advance(self, canvas: Canvas, ran: torch.Tensor) -> None:
        done = canvas.frontier >= canvas.width
        if self.early_stop and canvas.eos_token_ids:
            decided = self.settled(canvas) if canvas.revocable else canvas.first_open
            done = done | (canvas.first_eos < decided)
        canvas.finished = canvas.finished | (done & ran)


@SCHEDULES.register("blockwise")
@dataclasses.dataclass(frozen=True)
class BlockwiseSchedule(WholeCanvasSchedule):
    """One block at a time, from left to right, while the model sees the whole canvas (LLaDA, arXiv 2502.09992).

    The block in work is the first one that still has an open position, so every row advances at its own pace and fixed
    text between open positions is skipped. A block longer than the answer decodes the whole canvas at once.

    Args:
        block_length (`int`, defaults to 32): number of positions of a block. The last block of a row may be shorter.
        early_stop (`bool`, defaults to `True`): end a row as soon as an EOS is committed and nothing before it is
            open. The text is the same without it; only forwards behind the EOS are saved.
        align (`str`, defaults to `"prompt"`): where blocks begin. `"prompt"`: the first one begins behind the prompt,
            and the last one is cut. `"position"`: at multiples of `block_length` from the first token of the row, so
            that the first block also holds the end of the prompt (dInfer, arXiv 2510.08666). `"end"`: counted back from
            the end of the answer, so that the last block is whole, and the first one holds prompt, too.
    """

    align: Align = "prompt"

    def __post_init__(self):
        super().__post_init__()
        require(self.align in get_args(Align), "align", self.align, f"one of {list(get_args(Align))}")

    def active(self, canvas: Canvas) -> Blocks:
        # A block behind the prompt that holds the whole answer needs no columns for the prompt.
        length = min(self.block_length, canvas.span if self.align == "prompt" else canvas.width - 1)
        anchor = self._anchor(canvas, length)
        index = (canvas.frontier - anchor).div(length, rounding_mode="floor")
        begin = anchor + index * length
        start, end = torch.maximum(begin, canvas.start), torch.minimum(begin + length, canvas.end)
        columns = begin[:, None] + torch.arange(length, device=begin.device)
        columns = torch.where((columns >= start[:, None]) & (columns < end[:, None]), columns, 0)
        live = ~canvas.finished[:, None]
        return Blocks(
            columns=columns[:, None],
            index=index[:, None],
            live=live,
            force=live,
            start=start,
            end=end,
            visible_end=canvas.end,
            count=(canvas.end - anchor + length - 1).div(length, rounding_mode="floor"),
        )

    def _anchor(self, canvas: Canvas, length: int) -> torch.Tensor:
        """Column `(B,)` at which the first block begins; it may lie in front of the first real one."""
        if self.align == "prompt":
            return canvas.origin
        if self.align == "end":
            return canvas.origin - (canvas.origin - canvas.end) % length
        before = canvas.position_ids.gather(1, canvas.origin.clamp(max=canvas.width - 1)[:, None])[:, 0]
        return canvas.origin - before % length
