"""Cache policies: which positions a step recomputes. Everything else is read from the cache."""

from .base import POLICIES, CachePolicy, Plan
from .cache import DiffusionCache

__all__ = ["POLICIES", "CachePolicy", "DiffusionCache", "Plan"]
