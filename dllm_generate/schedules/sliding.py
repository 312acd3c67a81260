"""A block that slides over the text."""

import dataclasses

import torch

from ..canvas import Canvas
from ..registry import is_int, require
from .base import SCHEDULES, Blocks
from .blockwise import WholeCanvasSchedule


@SCHEDULES.register("sliding")
@dataclasses.dataclass(frozen=True)
class SlidingSchedule(WholeCanvasSchedule):
    """A block that begins at the first open position, wherever that is (DSB, arXiv 2602.05992).

    For bidirectional models. No position has to wait for the last ones of a fixed block. Cache policies refresh
    whenever another `block_length` positions have been committed, and recompute what the block has left behind once
    more in the next step.

    Args:
        block_length (`int`, defaults to 32): open positions that may be committed.
        early_stop (`bool`, defaults to `True`): end a row as soon as an EOS is committed and nothing before it is open.
        max_block_length (`int`, *optional*): how far the block may reach, so that positions that stay open do not keep
            others from it. Unset, `block_length`: it does not grow. At least `block_length`.
    """

    max_block_length: int | None = None

    def __post_init__(self):
        super().__post_init__()
        value = self.max_block_length
        fits = value is None or (is_int(value) and value >= self.block_length)
        require(fits, "max_block_length", value, f"None or an int of at least `block_length`, {self.block_length}")

    def validate(self, family, config):
        from ..decoders import DECODERS

        super().validate(family, config)
        decoder = config.build(DECODERS)
        if not decoder.memoryless:
            raise ValueError(
                f"`decoder` is {decoder.name!r}, which remembers a block by its places, but `schedule` {self.name!r} "
                "moves the block in every step."
            )
        if config.lookahead:
            raise ValueError(
                f"`lookahead` is on, but must be off with `schedule` {self.name!r}: drafts share the block of a row."
            )

    def active(self, canvas: Canvas) -> Blocks:
        length = min(self.max_block_length or self.block_length, canvas.span)
        start = torch.minimum(canvas.first_open, canvas.end)
        columns = start[:, None] + torch.arange(length, device=start.device)
        columns = torch.where(columns < canvas.end[:, None], columns, 0)
        number = canvas.open.gather(1, columns).cumsum(1)
        columns = torch.where(number <= self.block_length, columns, 0)
        total, left = canvas.editable.sum(1), canvas.open.sum(1)
        live = ~canvas.finished[:, None]
        return Blocks(
            columns=columns[:, None],
            index=(total - left).div(self.block_length, rounding_mode="floor")[:, None],
            live=live,
            force=live,
            start=start,
            end=torch.maximum(columns.amax(1) + 1, start),
            visible_end=canvas.end,
            count=(total + self.block_length - 1).div(self.block_length, rounding_mode="floor"),
        )
