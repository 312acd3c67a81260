"""The exact cache of block-causal models."""

import dataclasses

import torch

from .base import POLICIES, CachePolicy, Plan


@POLICIES.register("block")
@dataclasses.dataclass(frozen=True)
class BlockCachePolicy(CachePolicy):
    """Keeps the blocks that are complete, and recomputes the one in work. Exact for block-causal attention.

    The keys and values of a block are final once they have been computed from its final tokens. That happens in the
    first forward of the next block, whose window still holds it, as the prompt is in the first forward of all: neither
    prefill nor sealing a block costs a forward of its own.
    """

    def validate(self, family, config):
        super().validate(family, config)
        if family.attention != "block_causal":
            raise ValueError(
                f"`cache_policy` is {self.name!r}, which needs block-causal attention, but the family {family.name!r} "
                f"has `attention` {family.attention!r}."
            )

    def plan(self, canvas, blocks, state):
        entered = state.block != blocks.start
        lo = torch.where(state.block < 0, canvas.start, state.block)
        horizon = self.horizon(blocks)
        return Plan(lo=lo, hi=horizon, visible_end=horizon, refresh=entered)
