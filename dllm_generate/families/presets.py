"""Presets: named defaults for every option of `DiffusionGenerationConfig`."""

from typing import TYPE_CHECKING, Any

from dllm_generate.registry import require

if TYPE_CHECKING:
    from dllm_generate.families.base import Family


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


def preset_of(family: "Family", name: str | None = None) -> dict[str, Any]:
    """The options that a preset of a family gives.

    Args:
        family: with or without presets of its own.
        name: of the preset; None for `"published"`.

    Returns:
        Keywords of `DiffusionGenerationConfig`; decoder, schedule and cache policy are always there.

    Raises:
        ValueError: if the family has no such preset; lists those that it has.
    """
    common = default_presets(family.attention, family.block_length or 32)
    presets = {**common, **family.presets}
    name = name or "published"
    allowed = f"one of {list(presets)} for the family {family.name!r}"
    require(name in presets, "preset", name, allowed)
    return {**common["published"], **presets[name]}
