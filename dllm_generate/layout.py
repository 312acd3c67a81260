"""How a block-causal model cuts a row into blocks."""

import dataclasses
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .canvas import Canvas


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a block-causal model cuts a row into blocks.

    Args:
        block_length (`int`): positions of a block.
        prompt_is_one_block (`bool`): the prompt is block 0, however long, and blocks are counted from its end. False:
            blocks begin at multiples of `block_length`, and one may hold the end of the prompt.
    """

    block_length: int
    prompt_is_one_block: bool = False

    def surplus(self, prompt_lengths: torch.Tensor, new_tokens: int) -> torch.Tensor:
        """Positions `(B,)` that fill up the last block of a row."""
        before = torch.zeros_like(prompt_lengths) if self.prompt_is_one_block else prompt_lengths
        return -(before + new_tokens) % self.block_length

    def block_ids(self, canvas: "Canvas") -> torch.Tensor:
        """Number of the block of each cell `(B, 1 + T)`."""
        positions = canvas.position_ids
        if self.prompt_is_one_block:
            origin = canvas.origin.clamp(max=canvas.width - 1)[:, None]
            blocks = 1 + (positions - positions.gather(1, origin)).div(self.block_length, rounding_mode="floor")
            blocks = torch.where(torch.arange(canvas.width, device=blocks.device) < origin, 0, blocks)
        else:
            blocks = positions.div(self.block_length, rounding_mode="floor")
        blocks[:, 0] = canvas.width
        return blocks
