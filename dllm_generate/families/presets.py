"""Presets: named defaults for every option of `DiffusionGenerationConfig`."""

from typing import Any


def default_presets(attention: str, block_length: int = 32) -> dict[str, dict[str, Any]]:
    """The presets of a family that has no reason to differ, as keywords of `DiffusionGenerationConfig`.

    Args:
        attention: `"bidirectional"` (approximate caches) or `"block_causal"` (exact block cache).
        block_length: the block size of every preset.

    Returns:
        `"published"` (fixed quota; one token per step, since `steps` is unset), `"quality"` (no loss to speak of),
        `"balanced"` (few tokens lost) and `"speed"` (Fast-dLLM's threshold, whatever it costs). Where blocks are the
        decoder's own affair, the last two take them twice as long: more to choose from in every forward.
    """
    causal = attention == "block_causal"
    none, dual = ("block", "block") if causal else ("none", "dual")
    common = {"schedule": "block_diffusion" if causal else "blockwise", "block_length": block_length}
    wide = {**common, "block_length": block_length if causal else 2 * block_length, "cache_policy": dual}
    return {
        "published": {**common, "decoder": "fixed", "cache_policy": none},
        "quality": {**common, "decoder": "threshold", "threshold": 0.99, "cache_policy": none},
        "balanced": {**wide, "decoder": "joint"},
        "speed": {**wide, "decoder": "threshold", "threshold": 0.9},
    }
