"""Fast-dLLM v2's cache inside a block."""

import dataclasses

import torch

from ..schedules import SCHEDULES
from .base import POLICIES
from .block import BlockCachePolicy


@POLICIES.register("sub_block")
@dataclasses.dataclass(frozen=True)
class SubBlockCachePolicy(BlockCachePolicy):
    """Keeps the complete blocks, and recomputes only the sub-block in work (Fast-dLLM v2, arXiv 2509.26328).

    The whole block is recomputed as long as the first position of the sub-block is open; what the sub-block sees of the
    rest of its block is that old afterwards: an approximation. Complete blocks are exact. For the schedule `"seeded"`
    with a `sub_block_length`.
    """

    def validate(self, family, config):
        super().validate(family, config)
        schedule = config.build(SCHEDULES)
        if not hasattr(schedule, "sub_block_length"):
            raise ValueError(
                f"`cache_policy` is {self.name!r}, which needs a schedule with sub-blocks, such as 'seeded', but "
                f"`schedule` is {schedule.name!r}."
            )

    def plan(self, canvas, blocks, state):
        plan = super().plan(canvas, blocks, state)
        columns = blocks.columns[:, 0]
        first = torch.where(columns > 0, columns, canvas.width).amin(1)
        cells = torch.arange(canvas.width, device=columns.device)
        inside = (cells > blocks.start[:, None]) & (cells < blocks.end[:, None])
        # The seed step leaves the block without keys and values. They are there once something of it has been decided.
        begun = (inside & canvas.editable & ~canvas.open).any(1)
        whole = plan.refresh | ~begun | canvas.open.gather(1, first.clamp(max=canvas.width - 1)[:, None])[:, 0]
        # The position of `first` is decided, so that the hidden row before it is not wanted.
        lo = torch.where(whole, plan.lo, first + 1)
        hi = torch.where(whole, plan.hi, columns.amax(1) + 1)
        return dataclasses.replace(plan, lo=lo, hi=hi, refresh=whole)
