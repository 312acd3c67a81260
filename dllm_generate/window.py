"""Which columns the next forwards recompute, and what the host has to know of them."""

import dataclasses
from typing import NamedTuple

import torch

from .caches import Plan
from .compiling import WIDTH_STEP
from .progress import MASK_PREDICTED
from .run import Run
from .schedules import Blocks


@dataclasses.dataclass
class Window:
    """The columns that the model rows of a step recompute, each `(M,)`.

    There are as many model rows as rows of the batch, or twice as many under guidance.

    Attributes:
        lo, hi: the columns `[lo, hi)`.
        behind: the column behind the active blocks.
        visible_end: queries see the columns before this one.
    """

    lo: torch.Tensor
    hi: torch.Tensor
    behind: torch.Tensor
    visible_end: torch.Tensor

    @classmethod
    def of(cls, run: Run, blocks: Blocks, plan: Plan) -> "Window":
        """Widens a plan to what the model has to see."""
        lo, hi, behind, end, start = plan.lo, plan.hi, blocks.end, plan.visible_end, run.canvas.start
        if run.guidance is not None:
            other = run.guidance.prompt.start
            whole = plan.refresh & (lo == start)
            start, lo = torch.cat([start, other]), torch.cat([lo, torch.where(whole, other, lo)])
            hi, behind, end = (torch.cat([column, column]) for column in (hi, behind, end))
        if run.logits_shift:
            # The hidden row that predicts a position lies one to its left.
            lo = torch.maximum(lo - 1, start)
        return cls(lo, hi, behind, end)


class Group(NamedTuple):
    """Model rows that share a forward.

    Rows of similar width do: padding a narrow window to the width of a refresh costs more than a second forward.

    Attributes:
        rows: their numbers.
        width: columns of the widest window.
        skip: columns that lie in or in front of the active blocks in every row.
        steady: windows of this width come again and again, so that compiling it pays.
    """

    rows: list[int]
    width: int
    skip: int
    steady: bool


class Launch(NamedTuple):
    """What the host knows of the next step.

    Attributes:
        groups: its forwards.
        running: rows that are not finished.
        refresh: whether a row rewrites what its later windows leave out.
        slots: blocks of a row that take part.
    """

    groups: list[Group]
    running: list[int]
    refresh: bool
    slots: int

    def misfits(self, window: Window, blocks: Blocks) -> torch.Tensor:
        """Returns `(B,)`: rows whose window or blocks of a later step these forwards do not suit."""
        room, skip = [0] * window.lo.numel(), [0] * window.lo.numel()
        for group in self.groups:
            for row in group.rows:
                room[row], skip[row] = group.width, group.skip
        half, room, skip = torch.tensor([[width // 2 for width in room], room, skip], device=window.lo.device)
        width = window.hi - window.lo
        suits = (width > half) & (width <= room) & (window.behind - window.lo >= skip)
        misfits = ~suits.view(-1, len(self.running)).all(0)
        return misfits if blocks.used is None else misfits | (blocks.used > self.slots)


def read(run: Run, blocks: Blocks, plan: Plan, window: Window) -> Launch:
    """The one host read of a step. Raises ValueError for rows with a fault."""
    batch, models = run.steps.numel(), window.lo.numel()
    flags = torch.stack([run.fault, blocks.ran, run.canvas.finished, plan.refresh]).flatten()
    used = [] if blocks.used is None else [blocks.used]
    packed = torch.cat([window.lo, window.hi, window.behind, flags, *used]).tolist()
    lo, hi, behind = (packed[i * models : (i + 1) * models] for i in range(3))
    fault, ran, finished, refresh, use = (packed[3 * models + i * batch :][:batch] for i in range(5))
    if any(fault):
        _raise(run, fault)
    running = [row for row in range(batch) if not finished[row]]
    # The first windows hold whole prompts; no layer knows its keys and values before.
    compiles = run.backbone.compiled is not None and run.cache is not None and run.cache.is_filled
    classes: dict[tuple[int, bool], Group] = {}
    for half in range(models // batch):
        for place, row in enumerate(running):
            if ran[row]:
                model = half * batch + row
                width, skip = hi[model] - lo[model], behind[model] - lo[model]
                steady = compiles and not refresh[row]
                width = -(-width // WIDTH_STEP) * WIDTH_STEP if steady else width
                kind = (width - 1).bit_length(), steady
                rows, widest, least, _ = classes.get(kind, ([], 0, skip, steady))
                rows = [*rows, half * len(running) + place]
                classes[kind] = Group(rows, max(widest, width), min(least, skip), steady)
    refreshing = run.cache is not None and any(refresh[row] and ran[row] for row in running)
    slots = max((use[row] for row in running), default=1) if use else blocks.live.shape[1]
    return Launch(list(classes.values()), running, refreshing, slots)


def _raise(run: Run, fault: list[int]) -> None:
    """Raises ValueError for the rows with the lowest number of a fault: a decoder is right to trip over bad scores."""
    which = min(filter(None, fault))
    rows = [row for row, number in zip(run.canvas.row.tolist(), fault) if number == which]
    if which == MASK_PREDICTED:
        raise ValueError(
            f"`decoder` {type(run.decoder).__name__} committed the mask id {run.canvas.mask_token_id} in row {rows}, "
            "but must predict other tokens only, such as those of `state.predict(scores)`."
        )
    raise ValueError(
        f"The model gave NaN or infinite logits, or every token is banned, at an open position of row {rows}. "
        "Check the weights, the dtype and the banned tokens."
    )
