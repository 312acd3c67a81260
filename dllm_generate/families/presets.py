"""Presets: named defaults for every option of `DiffusionGenerationConfig`."""

from typing import Any


def default_presets(attention: str, block_length: int = 32) -> dict[str, dict[str, Any]]:
    """The presets of a family that has no reason to differ, as keywords of `DiffusionGenerationConfig`.

    Args:
        attention: `"bidirectional"` (approximate caches) or `"block_causal"` (exact block cache).
        block_length: the block size of every preset.

    Returns:
        `"published"` (fixed quota; one token per step, since `steps` is unset), `"quality"`, `"balanced"`, `"speed"`.
    """
    causal = attention == "block_causal"
    none, prefix, dual = ("block", "block", "block") if causal else ("none", "prefix", "dual")
    common = {"schedule": "block_diffusion" if causal else "blockwise", "block_length": block_length}
    return {
        "published": {**common, "decoder": "fixed", "cache_policy": none},
        "quality": {**common, "decoder": "threshold", "threshold": 0.95, "cache_policy": none},
        "balanced": {**common, "decoder": "threshold", "threshold": 0.9, "cache_policy": prefix},
        "speed": {**common, "decoder": "threshold", "threshold": 0.85, "cache_policy": dual},
    }
