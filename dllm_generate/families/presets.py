"""Presets: named defaults for every option of `DiffusionGenerationConfig`."""

from typing import Any


def default_presets(attention: str, block_length: int = 32) -> dict[str, dict[str, Any]]:
    """The presets of a family that has no reason to differ, as keywords of `DiffusionGenerationConfig`.

    Args:
        attention: `"bidirectional"` (approximate caches) or `"block_causal"` (exact block cache).
        block_length: the block size of every preset.

    Returns:
        `"published"` (fixed quota; one token per step, since `steps` is unset), `"quality"` (no loss to speak of,
        nothing approximate but the order), `"balanced"` (the same with an approximate cache) and `"speed"` (Fast-dLLM's
        fastest setting).
    """
    causal = attention == "block_causal"
    none, dual = ("block", "block") if causal else ("none", "dual")
    common = {"schedule": "block_diffusion" if causal else "blockwise", "block_length": block_length}
    return {
        "published": {**common, "decoder": "fixed", "cache_policy": none},
        "quality": {**common, "decoder": "joint", "cache_policy": none},
        "balanced": {**common, "decoder": "joint", "cache_policy": dual},
        "speed": {**common, "decoder": "threshold", "threshold": 0.9, "cache_policy": dual},
    }
