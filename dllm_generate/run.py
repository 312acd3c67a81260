"""The state of one call of generate."""

import dataclasses

import torch

from .backbone import Backbone
from .caches import CachePolicy, DiffusionCache
from .caches.base import CacheState
from .canvas import Canvas
from .constraints import Constraints
from .decoders import Decoder, DecoderState
from .drafts import Drafts
from .guidance import Guidance
from .sampling import Noise
from .schedules import Schedule
from .smoothing import SoftEmbeddings


@dataclasses.dataclass
class Run:
    """One call of generate: its parts, and the state of the rows that are still running.

    Attributes:
        fault (`LongTensor (B,)`): 0, or what was wrong in a step of the row; see `progress.faults`.
        seed (`int` or None): where random numbers are wanted.
        vocabulary (`int` or None): open positions hold random ids below this; None if they hold the mask id.
        soft: state of iteration smoothing, where it is on.
        drafts: state of look-ahead decoding, where it is on.
        unroll_steps (`int`): steps from one host read to the next.
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
    fault: torch.Tensor
    logits_shift: bool = False
    cache: DiffusionCache | None = None
    guidance: Guidance | None = None
    seed: int | None = None
    vocabulary: int | None = None
    soft: SoftEmbeddings | None = None
    drafts: Drafts | None = None
    unroll_steps: int = 1
    tied: torch.Tensor | None = None

    @property
    def steps(self) -> torch.Tensor:
        """`(B,)`: steps that the row has run."""
        return self.cache_state.steps

    def noise(self, columns: torch.Tensor, slots: int, ahead: int = 0) -> Noise | None:
        """Random numbers of a step so many `ahead` for `columns` `(B, slots * k)`; None if nobody wants any."""
        if self.seed is None:
            return None
        row, steps = (x[:, None].expand(-1, slots).flatten() for x in (self.canvas.row, self.steps))
        positions = self.canvas.position_ids.gather(1, columns)
        return Noise(self.seed, row, steps + ahead, positions.view(row.numel(), -1))

    def select(self, rows: torch.Tensor, *, keys_and_values: bool = True) -> None:
        """Goes on with `rows`, which may repeat.

        Args:
            rows: `(n,)`.
            keys_and_values: select those of the cache, too. Only where they are equal already can this be left out.
        """
        batch, slots = self.steps.numel(), self.state.block.numel() // self.steps.numel()
        flat = (rows[:, None] * slots + torch.arange(slots, device=rows.device)).flatten()
        if self.cache is not None and keys_and_values:
            halves = 1 if self.guidance is None else 2
            self.cache.batch_select_indices(torch.cat([rows + half * batch for half in range(halves)]))
        self.state = self.state.select(flat)
        self.backbone = self.backbone.select(rows)
        for name in ("canvas", "cache_state", "constraints", "guidance", "soft", "drafts"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name).select(rows))
        self.fault = self.fault[rows]
