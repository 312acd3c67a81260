"""Classifier-free guidance: the same step over twice the rows."""

import dataclasses

import torch

from .canvas import Canvas
from .rows import Rows


@dataclasses.dataclass
class View(Rows):
    """What the model is shown of a canvas: its cells, with another prompt or the same one.

    Attributes:
        input_ids, position_ids, real: `(B, 1 + T)`.
        start (`LongTensor (B,)`): first real column.
        block_ids (`LongTensor (B, 1 + T)` or None): as of the canvas.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    real: torch.Tensor
    start: torch.Tensor
    block_ids: torch.Tensor | None = None

    @classmethod
    def of(cls, canvas: Canvas) -> "View":
        """The canvas as it is."""
        return cls(canvas.input_ids, canvas.position_ids, canvas.real, canvas.start, canvas.block_ids)


@dataclasses.dataclass
class Guidance(Rows):
    """Mixes conditional and unconditional logits: `u + scale * (c - u)` (LLaDA's `cfg_scale` is `scale - 1`).

    Attributes:
        scale (`float`): transformers' `guidance_scale`.
        prompt: the unconditional prompt in the canvas' columns; its generated columns are ignored.
    """

    scale: float
    prompt: View

    @classmethod
    def build(cls, scale: float, canvas: Canvas, mask_token_id: int, negative: Canvas | None) -> "Guidance":
        """Takes the unconditional prompt from `negative`, a canvas of equal width, or masks the prompt of `canvas`."""
        if negative is not None:
            return cls(scale, View.of(negative))
        view = View.of(canvas)
        view.input_ids = torch.where(canvas.real, mask_token_id, canvas.input_ids)
        return cls(scale, view)

    def select(self, rows: torch.Tensor) -> "Guidance":
        return Guidance(self.scale, self.prompt.select(rows))

    def doubled(self, canvas: Canvas) -> View:
        """The canvas, and behind it the canvas with the unconditional prompt: `2B` rows."""
        ids = torch.where(canvas.editable, canvas.input_ids, self.prompt.input_ids)
        return View(
            torch.cat([canvas.input_ids, ids]),
            torch.cat([canvas.position_ids, self.prompt.position_ids]),
            torch.cat([canvas.real, self.prompt.real]),
            torch.cat([canvas.start, self.prompt.start]),
            None if canvas.block_ids is None else torch.cat([canvas.block_ids, canvas.block_ids]),
        )

    def merge(self, scores: torch.Tensor) -> torch.Tensor:
        """Args: scores `(2B, n, V)`. Returns `(B, n, V)`."""
        conditional, unconditional = scores.chunk(2)
        return unconditional + self.scale * (conditional - unconditional)
