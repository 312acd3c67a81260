"""Which columns the next forwards recompute, and what the host has to know of them."""

import dataclasses
from typing import NamedTuple

import torch

from .caches import Plan
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
            start, lo = torch.cat([start, other]), torch.cat([lo, torch.where(plan.refresh, other, lo)])
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
    """

    rows: list[int]
    width: int
    skip: int


class Launch(NamedTuple):
    """What the host knows of the next step: its forwards, and the rows that are not finished."""

    groups: list[Group]
    running: list[int]


def read(run: Run, blocks: Blocks, window: Window) -> Launch:
    """The one host read of a step. Raises ValueError for rows with invalid scores."""
    batch, models = run.steps.numel(), window.lo.numel()
    facts = [window.lo, window.hi, window.behind, blocks.ran.long(), run.canvas.finished.long(), run.invalid.long()]
    packed = torch.cat(facts).tolist()
    lo, hi, behind = (packed[i * models : (i + 1) * models] for i in range(3))
    ran, finished, invalid = (packed[3 * models + i * batch : 3 * models + (i + 1) * batch] for i in range(3))
    if any(invalid):
        rows = [row for row, bad in zip(run.canvas.row.tolist(), invalid) if bad]
        raise ValueError(
            f"The model gave NaN or infinite logits, or every token is banned, at an open position of row {rows}. "
            "Check the weights, the dtype and the banned tokens."
        )
    running = [row for row in range(batch) if not finished[row]]
    classes: dict[int, Group] = {}
    for half in range(models // batch):
        for place, row in enumerate(running):
            if ran[row]:
                model = half * batch + row
                width, skip = hi[model] - lo[model], behind[model] - lo[model]
                size = (width - 1).bit_length()
                rows, widest, least = classes.get(size, ([], 0, skip))
                rows = [*rows, half * len(running) + place]
                classes[size] = Group(rows, max(widest, width), min(least, skip))
    return Launch(list(classes.values()), running)
