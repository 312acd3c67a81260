"""State with one entry per row of the batch."""

import dataclasses
from typing import TypeVar

import torch

R = TypeVar("R", bound="Rows")


@dataclasses.dataclass
class Rows:
    """Base of every dataclass of tensors whose leading dimension is the row of the batch."""

    def select(self: R, rows: torch.Tensor) -> R:
        """Returns a copy that holds only `rows` (LongTensor of shape `(n,)`), in that order."""
        kept = {
            field.name: value.index_select(0, rows)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return dataclasses.replace(self, **kept)
