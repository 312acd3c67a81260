"""What a schedule is."""

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from ..canvas import Canvas
from ..layout import Layout
from ..registry import Registry
from ..rows import Rows

if TYPE_CHECKING:
    from ..config import DiffusionGenerationConfig
    from ..families import Family


@dataclasses.dataclass
class Blocks(Rows):
    """The blocks that may be written in this step, one per slot of each row.

    Attributes:
        columns (`LongTensor (B, slots, k)`): columns of the block; 0 where a block is shorter than k.
        index (`LongTensor (B, slots)`): number of the block in its row, counted from 0.
        live (`BoolTensor (B, slots)`): slots that take part in this step, never those of a finished row. A row without
            a live slot is idle.
        force (`BoolTensor (B, slots)`): slots in which the step must commit at least one position.
        start, end (`LongTensor (B,)`): first column of the first block, and the column behind the last one.
        visible_end (`LongTensor (B,)`): the model sees the columns before this one.
        count (`LongTensor (B,)`): number of blocks of the row.
        used (`LongTensor (B,)`, *optional*): slots, from the first one on, that hold a block which has begun, also in
            rows that do not take part. Unset, all.
    """

    columns: torch.Tensor
    index: torch.Tensor
    live: torch.Tensor
    force: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor
    visible_end: torch.Tensor
    count: torch.Tensor
    used: torch.Tensor | None = None

    @property
    def ran(self) -> torch.Tensor:
        """`(B,)`: rows that take part in this step; nothing of any other row may change."""
        return self.live[:, 0] if self.live.shape[1] == 1 else self.live.any(1)

    def without(self, idle: torch.Tensor) -> "Blocks":
        """The same blocks, of which the rows `idle` `(B,)` do not take part."""
        live = self.live & ~idle[:, None]
        return dataclasses.replace(self, live=live, force=self.force & live)

    def cut(self, slots: int) -> "Blocks":
        """The first `slots` of them."""
        if self.live.shape[1] == slots:
            return self
        parts = {name: getattr(self, name)[:, :slots] for name in ("columns", "index", "live", "force")}
        return dataclasses.replace(self, **parts)


class Schedule(ABC):
    """Decides which positions may be committed now, and when a row moves on or ends. Holds no tensors.

    A class that sets `overlaps` may work on several blocks of a row at once.
    """

    name: ClassVar[str]
    overlaps: ClassVar[bool] = False

    def validate(self, family: "Family", config: "DiffusionGenerationConfig") -> None:
        """Raises ValueError where this schedule cannot serve `family` or `config`."""

    def layout(self, family: "Family") -> Layout | None:
        """How the canvas is cut into blocks that attention knows of; None where all cells see each other."""
        return None

    @abstractmethod
    def active(self, canvas: Canvas) -> Blocks:
        """Returns the blocks of the next step. A pure function of the canvas."""

    def settled(self, canvas: Canvas) -> torch.Tensor:
        """Returns `(B,)`: the columns before this one lie in finished blocks and change no more."""
        return self.active(canvas).start

    @abstractmethod
    def advance(self, canvas: Canvas, ran: torch.Tensor) -> None:
        """Marks the rows that ended in this step; `ran` `(B,)` tells which rows took part in it."""


SCHEDULES: Registry[Schedule] = Registry("schedule", "schedule_config", __package__, Schedule)
