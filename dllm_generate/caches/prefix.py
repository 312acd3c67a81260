"""Fast-dLLM's prefix cache."""

import dataclasses

from .base import POLICIES, RefreshingPolicy


@POLICIES.register("prefix")
@dataclasses.dataclass(frozen=True)
class PrefixCachePolicy(RefreshingPolicy):
    """Keeps what lies before the block; recomputes the block and all that follows (Fast-dLLM, arXiv 2505.22618)."""

    def window(self, canvas, blocks, horizon):
        return blocks.start, horizon
