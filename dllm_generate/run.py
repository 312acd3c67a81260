"""The state of one call of generate."""

import dataclasses

import torch

from .backbone import Backbone
from .caches import CachePolicy, DiffusionCache
from .caches.base import CacheState
from .canvas import Canvas
from .constraints import Constraints
from .decoders import Decoder, DecoderState
from .guidance import Guidance
from .schedules import Schedule
from .smoothing import SoftEmbeddings


@dataclasses.dataclass
class Run:
    """One call of generate: its parts, and the state of the rows that are still running.

    Attributes:
        invalid (`BoolTensor (B,)`): rows with a score that is not finite at a position that they could commit.
        seed (`int` or None): where random numbers are wanted.
        soft: state of iteration smoothing, where it is on.
        tied (`BoolTensor ()`): whether most open positions of a step had one confidence; None if nobody asks.
    """

    backbone: Backbone
    schedule: Schedule
    policy: CachePolicy
    decoder: Decoder
    canvas: Canvas
    state: DecoderState
    cache_state: CacheState
    constraints: Constraints
    invalid: torch.Tensor
    logits_shift: bool = False
    cache: DiffusionCache | None = None
    guidance: Guidance | None = None
    seed: int | None = None
    soft: SoftEmbeddings | None = None
    tied: torch.Tensor | None = None

    @property
    def steps(self) -> torch.Tensor:
        """`(B,)`: forwards in which the row ran."""
        return self.cache_state.steps

    def select(self, rows: torch.Tensor) -> None:
        """Goes on with `rows` only."""
        batch, slots = self.steps.numel(), self.state.block.numel() // self.steps.numel()
        flat = (rows[:, None] * slots + torch.arange(slots, device=rows.device)).flatten()
        if self.cache is not None:
            halves = 1 if self.guidance is None else 2
            self.cache.batch_select_indices(torch.cat([rows + half * batch for half in range(halves)]))
        self.state = self.state.select(flat)
        for name in ("canvas", "cache_state", "constraints", "guidance", "soft"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name).select(rows))
        self.invalid = self.invalid[rows]
