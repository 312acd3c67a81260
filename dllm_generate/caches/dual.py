"""Fast-dLLM's dual cache."""

import dataclasses

from .base import POLICIES, RefreshingPolicy


@POLICIES.register("dual")
@dataclasses.dataclass(frozen=True)
class DualCachePolicy(RefreshingPolicy):
    """Keeps what lies before and behind the block; recomputes the block only (Fast-dLLM, arXiv 2505.22618)."""

    def window(self, canvas, blocks, horizon):
        return blocks.start, blocks.end
