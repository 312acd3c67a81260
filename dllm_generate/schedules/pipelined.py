"""Several blocks at once: a block begins before the one in front of it is complete."""

import dataclasses
from typing import ClassVar

import torch

from ..canvas import Canvas
from ..registry import is_int, is_number, require
from .base import SCHEDULES, Blocks
from .block_diffusion import BlockDiffusionSchedule


@SCHEDULES.register("pipelined")
@dataclasses.dataclass(frozen=True)
class PipelinedSchedule(BlockDiffusionSchedule):
    """Pipelined block diffusion (D2F, arXiv 2508.09192) for block-causal models.

    A buffer of blocks runs in one forward. A block is admitted to it as soon as enough of the block before is decided.
    It commits only what its decoder chooses, maybe nothing, until that block is nearly done; from then on, at least one
    position in every step. It leaves the buffer when it and all blocks before it are complete. No block begins behind
    an EOS. With `block_add_threshold` 1 or `blocks_in_flight` 1 this is `block_diffusion`.

    Args:
        block_add_threshold (`float`, defaults to 0.1): share of the last block that is decided when the next is added.
        decoded_token_threshold (`float`, defaults to 0.95): share of a block that is decided when the next one has to
            commit in every step.
        blocks_in_flight (`int`, *optional*): most blocks that run at once, which bounds the widest forward. Unset, all
            that are admitted.
    """

    block_add_threshold: float = 0.1
    decoded_token_threshold: float = 0.95
    blocks_in_flight: int | None = None

    overlaps: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        for option in ("block_add_threshold", "decoded_token_threshold"):
            value = getattr(self, option)
            require(is_number(value) and 0 < value <= 1, option, value, "a number in (0, 1]")
        value = self.blocks_in_flight
        require(value is None or (is_int(value) and value > 0), "blocks_in_flight", value, "None or an int > 0")

    def validate(self, family, config):
        from ..decoders import DECODERS

        super().validate(family, config)
        decoder = config.build(DECODERS)
        if decoder.revocable:
            raise ValueError(
                f"`decoder` is {decoder.name!r}, which takes commits back, but `schedule` {self.name!r} begins blocks "
                "on what has been committed in those before."
            )

    def active(self, canvas: Canvas) -> Blocks:
        first = super().active(canvas)
        slots = self._slots(canvas)
        offset = torch.arange(1, slots, device=canvas.end.device)
        # The block in work begins the buffer; those behind it are whole.
        ends = first.end[:, None] + offset * self.block_length
        exists = (ends <= canvas.end[:, None]) & (ends - self.block_length <= canvas.first_eos[:, None])
        columns = ends[..., None] + torch.arange(-self.block_length, 0, device=ends.device)
        columns = torch.cat([first.columns, torch.where(exists[..., None], columns, 0)], 1)
        left = canvas.open.gather(1, columns.flatten(1)).view(columns.shape).sum(-1)
        added = exists & self._decided(left, self.block_add_threshold).cumprod(1).bool()
        begun = torch.cat([torch.ones_like(first.live), added], 1)
        live = first.live & begun & (left > 0)
        nearly = torch.cat([first.live, self._decided(left, self.decoded_token_threshold)], 1)
        used = 1 + added.sum(1)
        end = first.end + (used - 1) * self.block_length
        return Blocks(
            columns=torch.where(begun[..., None], columns, 0),
            index=torch.cat([first.index, first.index + offset], 1),
            live=live,
            force=live & nearly,
            start=first.start,
            end=end,
            visible_end=end,
            count=first.count,
            used=used,
        )

    def _slots(self, canvas: Canvas) -> int:
        # The first block may have begun in the prompt.
        most = canvas.span // self.block_length + 1
        return most if self.blocks_in_flight is None else min(most, self.blocks_in_flight)

    def _decided(self, left: torch.Tensor, share: float) -> torch.Tensor:
        """Whether of each block `(B, slots - 1)` in front of another at least `share` is decided."""
        enough = next(n for n in range(self.block_length + 1) if n / self.block_length >= share)
        return left[:, :-1] <= self.block_length - enough
