"""Block diffusion whose blocks begin with a token that the block before predicts."""

import dataclasses

import torch

from ..canvas import Canvas
from ..registry import is_int, require
from .base import SCHEDULES, Blocks
from .block_diffusion import BlockDiffusionSchedule


@SCHEDULES.register("seeded")
@dataclasses.dataclass(frozen=True)
class SeededSchedule(BlockDiffusionSchedule):
    """The schedule of Fast-dLLM v2 (arXiv 2509.26328), for block-causal models with shifted logits.

    The first position of a block is committed in a step of its own, in which the model sees nothing from there on: the
    last position of the complete text before predicts it, as in a left-to-right model. That forward also makes the keys
    and values of the block before final. Then the block is decoded in sub-blocks from left to right, and every forward
    sees all of it. To a decoder, a seed step and a sub-block are blocks of their own.

    Args:
        sub_block_length (`int`, *optional*): positions of a sub-block; the last one of a block may be shorter. Unset:
            the block.
    """

    sub_block_length: int | None = None

    def __post_init__(self):
        super().__post_init__()
        value = self.sub_block_length
        require(value is None or (is_int(value) and value > 0), "sub_block_length", value, "None or an int > 0")

    def validate(self, family, config):
        super().validate(family, config)
        if not family.logits_shift:
            raise ValueError(
                f"`schedule` is {self.name!r}, which needs shifted logits, but the family {family.name!r} has none."
            )

    def active(self, canvas: Canvas) -> Blocks:
        blocks = super().active(canvas)
        columns, first = blocks.columns[:, 0], blocks.start
        seed = canvas.open.gather(1, first[:, None])[:, 0] & (first > canvas.start)
        length = min(self.sub_block_length or self.block_length, self.block_length)
        parts = -(-self.block_length // length)
        # A block with open positions ends whole, whatever the prompt in it looks like.
        frontier = torch.minimum(canvas.frontier, blocks.end - 1) - blocks.end + self.block_length
        part = frontier // length
        of_column = torch.arange(self.block_length, device=columns.device) // length
        inside = torch.where(seed[:, None], columns == first[:, None], of_column == part[:, None])
        skipped = self._skipped(canvas, length)
        number = torch.where(seed, 0, 1 + part)
        return dataclasses.replace(
            blocks,
            columns=torch.where(inside, columns, 0)[:, None],
            visible_end=torch.where(seed, first, blocks.end),
            index=blocks.index * (1 + parts) + (number - skipped)[:, None],
            count=blocks.count * (1 + parts) - skipped,
        )

    def _skipped(self, canvas: Canvas, length: int) -> torch.Tensor:
        """Of the seed step and the sub-blocks of a row's first block, how many `(B,)` the prompt leaves no part in."""
        assert canvas.block_ids is not None
        origin = canvas.origin.clamp(max=canvas.width - 1)
        block = canvas.block_ids.gather(1, origin[:, None])
        place = self.block_length - (canvas.editable & (canvas.block_ids == block)).sum(1)
        seeded = (place == 0) & (origin > canvas.start)
        return torch.where(seeded, 0, 1 + place // length)

    def advance(self, canvas, ran):
        super().advance(canvas, ran)
        if self.early_stop and not canvas.revocable:
            canvas.finished = canvas.finished | ((canvas.first_open >= canvas.limit) & ran)
