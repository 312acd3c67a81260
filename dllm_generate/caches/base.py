"""What a cache policy is."""

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from ..canvas import Canvas
from ..registry import Registry, is_int, require
from ..rows import Rows
from ..schedules import Blocks

if TYPE_CHECKING:
    from ..config import DiffusionGenerationConfig
    from ..families import Family


@dataclasses.dataclass
class Plan(Rows):
    """The window of one step: row b recomputes the columns `[lo[b], hi[b])`.

    Attributes:
        lo, hi (`LongTensor (B,)`): the window.
        visible_end (`LongTensor (B,)`): queries see the columns before this one.
        refresh (`BoolTensor (B,)`): rows whose window is wider than those of the steps that follow, as a rule the whole
            visible canvas.
    """

    lo: torch.Tensor
    hi: torch.Tensor
    visible_end: torch.Tensor
    refresh: torch.Tensor


@dataclasses.dataclass
class CacheState(Rows):
    """What a policy may know about the past of a row; moved by the step, only where the row ran.

    Attributes:
        block, index (`LongTensor (B,)`): start column and number of the block of the last refresh, -1 before the first.
        start (`LongTensor (B,)`): start column of the block of the last step.
        age (`LongTensor (B,)`): steps since the last refresh.
        steps (`LongTensor (B,)`): steps that the row has run.
    """

    block: torch.Tensor
    index: torch.Tensor
    start: torch.Tensor
    age: torch.Tensor
    steps: torch.Tensor

    @classmethod
    def begin(cls, canvas: Canvas) -> "CacheState":
        """The state before the first step."""
        return cls(
            block=torch.full_like(canvas.start, -1),
            index=torch.full_like(canvas.start, -1),
            start=torch.full_like(canvas.start, canvas.width),
            age=torch.zeros_like(canvas.start),
            steps=torch.zeros_like(canvas.start),
        )

    def advance(self, plan: Plan, blocks: Blocks) -> None:
        """Records a step."""
        self.steps = self.steps + blocks.ran
        refreshed = plan.refresh & blocks.ran
        self.block = torch.where(refreshed, blocks.start, self.block)
        self.index = torch.where(refreshed, blocks.index[:, 0], self.index)
        self.start = torch.where(blocks.ran, blocks.start, self.start)
        self.age = torch.where(refreshed, 1, self.age + blocks.ran)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachePolicy(ABC):
    """Chooses the window of every step. Holds no tensors.

    Args:
        suffix_window (`int`, *optional*): the model sees only so many positions behind the block in work; the masks
            that follow are left out of every forward. Unset, it sees all of them, as it was trained.
    """

    suffix_window: int | None = None

    name: ClassVar[str]
    uses_cache: ClassVar[bool] = True

    def __post_init__(self) -> None:
        value = self.suffix_window
        require(value is None or (is_int(value) and value >= 0), "suffix_window", value, "None or an int >= 0")

    def validate(self, family: "Family", config: "DiffusionGenerationConfig") -> None:
        """Raises ValueError where this policy cannot serve `family` or `config`."""
        if self.suffix_window is not None and family.attention == "block_causal":
            raise ValueError(
                f"`suffix_window` is {self.suffix_window}, but must be None for block-causal attention, which sees "
                "nothing behind a block."
            )

    def horizon(self, blocks: Blocks) -> torch.Tensor:
        """Returns `(B,)`: the column behind the last one that the model is shown."""
        if self.suffix_window is None:
            return blocks.visible_end
        return torch.minimum(blocks.end + self.suffix_window, blocks.visible_end)

    @abstractmethod
    def plan(self, canvas: Canvas, blocks: Blocks, state: CacheState) -> Plan:
        """Returns the window of the next step. A pure function."""


@dataclasses.dataclass(frozen=True)
class RefreshingPolicy(CachePolicy):
    """A policy that keeps approximate keys and values of a bidirectional model, and refreshes them now and then.

    Args:
        refresh_interval (`int`, *optional*): recompute the whole visible canvas every so many steps of a row. Unset, it
            is recomputed once, when a row enters a block. 1 equals no cache.
    """

    refresh_interval: int | None = None

    def validate(self, family, config):
        if family.attention != "bidirectional":
            raise ValueError(
                f"`cache_policy` is {self.name!r}, which approximates bidirectional attention, but the family "
                f"{family.name!r} has `attention` {family.attention!r}: 'block' is exact there."
            )

    def __post_init__(self):
        super().__post_init__()
        value = self.refresh_interval
        require(value is None or (is_int(value) and value > 0), "refresh_interval", value, "None or an int > 0")

    @abstractmethod
    def window(self, canvas: Canvas, blocks: Blocks, horizon: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `(lo, hi)`, each `(B,)`: the window of a step that is no refresh, `hi` at most `horizon`."""

    def refreshes(self, blocks: Blocks, state: CacheState) -> torch.Tensor:
        """Returns `(B,)` bool: rows whose next step is a refresh."""
        refresh = state.index != blocks.index[:, 0]
        return refresh if self.refresh_interval is None else refresh | (state.age >= self.refresh_interval)

    def plan(self, canvas: Canvas, blocks: Blocks, state: CacheState) -> Plan:
        horizon = self.horizon(blocks)
        lo, hi = self.window(canvas, blocks, horizon)
        # What a block that slides has left behind was committed in the last step.
        lo = torch.minimum(lo, state.start)
        refresh = self.refreshes(blocks, state)
        return Plan(
            lo=torch.where(refresh, canvas.start, lo),
            hi=torch.where(refresh, horizon, hi),
            visible_end=horizon,
            refresh=refresh,
        )


POLICIES: Registry[CachePolicy] = Registry("cache_policy", "policy_config", __package__, CachePolicy)
