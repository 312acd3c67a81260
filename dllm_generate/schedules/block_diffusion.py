"""Block diffusion: the canvas ends with the block in work."""

import dataclasses

import torch

from ..canvas import Canvas
from ..layout import Layout
from ..registry import is_int, require
from .base import SCHEDULES, Blocks, Schedule


@SCHEDULES.register("block_diffusion")
@dataclasses.dataclass(frozen=True)
class BlockDiffusionSchedule(Schedule):
    """One block at a time, from left to right, for block-causal models (BD3-LM, arXiv 2503.09573; SDAR, 2510.06303).

    A block sees the blocks before it and itself, so what follows need not be there, and what precedes never changes.
    Blocks lie where the family has them: at multiples of the block length from the first token of a row, or counted
    from the end of the prompt. The last block is decoded as a whole; what lies behind `max_new_tokens` is not returned.

    Args:
        block_length (`int`, defaults to 32): number of positions of a block; the family's, where it has one.
        early_stop (`bool`, defaults to `True`): end a row as soon as an EOS is committed and nothing before it is
            open. False: complete the block in which it is. No block is ever begun behind an EOS.
        prompt_is_one_block (`bool`, *optional*): where blocks lie in a model of no known family. True: the prompt is
            one block, and the others are counted from its end. False: all are counted from the first token of a row.
            Unset, what the family says; True for one made by hand.
    """

    block_length: int = 32
    early_stop: bool = True
    prompt_is_one_block: bool | None = None

    def __post_init__(self):
        require(is_int(self.block_length) and self.block_length > 0, "block_length", self.block_length, "an int > 0")
        require(isinstance(self.early_stop, bool), "early_stop", self.early_stop, "a bool")
        value = self.prompt_is_one_block
        require(value is None or isinstance(value, bool), "prompt_is_one_block", value, "None or a bool")

    def validate(self, family, config):
        if family.attention != "block_causal":
            raise ValueError(
                f"`schedule` is {self.name!r}, which needs block-causal attention, but the family {family.name!r} has "
                f"`attention` {family.attention!r}."
            )
        if family.block_length not in (None, self.block_length):
            raise ValueError(
                f"`block_length` is {self.block_length}, but must be {family.block_length} for the family "
                f"{family.name!r}, whose attention has blocks of this length."
            )
        if family.block_length is not None and self.prompt_is_one_block not in (None, family.prompt_is_one_block):
            raise ValueError(
                f"`prompt_is_one_block` is {self.prompt_is_one_block}, but must be {family.prompt_is_one_block} for "
                f"the family {family.name!r}, whose attention has its blocks there."
            )
        if self.overlaps and family.backbone is not None and family.backbone.encodes:
            raise ValueError(
                f"`schedule` is {self.name!r}, but must be one with one block at a time, as 'block_diffusion', for the "
                f"family {family.name!r}, whose encoder reads finished blocks."
            )
        if config.infill:
            raise ValueError(f"`infill` is True, but must be off with `schedule` {self.name!r}.")

    def layout(self, family):
        by_hand = self.prompt_is_one_block
        return Layout(self.block_length, family.prompt_is_one_block if by_hand is None else by_hand)

    def active(self, canvas: Canvas) -> Blocks:
        assert canvas.block_ids is not None
        frontier = canvas.frontier.clamp(max=canvas.width - 1)[:, None]
        block = canvas.block_ids.gather(1, frontier)
        inside = canvas.block_ids == block
        start = torch.maximum(inside.int().argmax(1), canvas.start)
        # Generated cells have no gaps between them; in the prompt, padding may stretch a block.
        end = (canvas.block_ids[:, 1:] <= block).sum(1) + 1
        end = torch.minimum(end, canvas.end)
        columns = end[:, None] + torch.arange(-self.block_length, 0, device=end.device)
        columns = torch.where(columns >= start[:, None], columns, 0)
        origin = canvas.origin.clamp(max=canvas.width - 1)[:, None]
        before = canvas.block_ids.gather(1, origin)
        last = canvas.block_ids.gather(1, (canvas.end - 1)[:, None])
        live = ~canvas.finished[:, None]
        return Blocks(
            columns=columns[:, None],
            index=block - before,
            live=live,
            force=live,
            start=start,
            end=end,
            visible_end=end,
            count=(last - before + 1)[:, 0],
        )

    def advance(self, canvas: Canvas, ran: torch.Tensor) -> None:
        done = canvas.frontier >= canvas.width
        if canvas.eos_token_ids:
            decided = canvas.first_open if self.early_stop and not canvas.revocable else self.settled(canvas)
            done = done | (canvas.first_eos < decided)
        canvas.finished = canvas.finished | (done & ran)
