"""The configurations that tuning tries, and the check that a model takes them."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..backbone import body_of
from ..caches import POLICIES
from ..decoders import DECODERS
from ..families import Family
from ..families.presets import preset_of
from ..text import encode, reply, user
from .harness import Config

# One token per step: what every candidate is compared with.
REFERENCE: Config = {"decoder": "fixed"}
THRESHOLDS = (0.8, 0.85, 0.9, 0.95, 0.98, 0.99)

# What is tried of every decoder that is registered. A new decoder is one more line.
DECODER_GRID: dict[str, tuple[Config, ...]] = {
    "threshold": tuple({"threshold": value} for value in THRESHOLDS),
    "factor": tuple({"decoder_config": {"factor": value}} for value in (0.25, 0.5, 1.0)),
    "hierarchical": tuple({"threshold": value} for value in THRESHOLDS),
    "credit": tuple({"threshold": value} for value in THRESHOLDS),
    "joint": tuple({"threshold": value} for value in (0.95, 0.985, 0.995)),
    "wino": tuple({"decoder_config": {"verify_threshold": value}} for value in (0.9, 0.99)),
}
# By the attention of the family.
POLICY_GRID: dict[str, tuple[str, ...]] = {
    "bidirectional": ("none", "prefix", "dual", "vicinity"),
    "block_causal": ("block",),
}
# Guesses beside every row, for these decoders and cache policies.
LOOKAHEAD_GRID: tuple[Config, ...] = tuple({"drafts": drafts, "lossless": False} for drafts in (4, 16))
AHEAD = {"decoder": ("joint",), "cache_policy": ("none", "dual", "block")}
LARGER_BLOCKS = (2, 4, 8)


def reference_config(family: Family, own: Any = None) -> Config:
    """One token per step, in the blocks and with the cache policy of the family's published sampler.

    Args:
        family: of the model.
        own: the model's generation config. What it says of steps and smoothing is undone.
    """
    published = preset_of(family)
    config = {**REFERENCE, "cache_policy": published["cache_policy"], "block_length": published["block_length"]}
    if getattr(own, "steps", None) or getattr(own, "steps_per_block", None):
        config["steps_per_block"] = config["block_length"]
    if getattr(own, "smoothing", None):
        config["smoothing"] = False
    return config


def default_candidates(family: Family, max_new_tokens: int) -> list[Config]:
    """The grid: decoders with their values, times cache policies, times block lengths; some of them with look-ahead.

    Args:
        family: of the model. Its published block length is tried, and 2, 4 and 8 times it where the family leaves it
            free.
        max_new_tokens: of the answers. Of the block lengths that hold the whole answer, only the smallest is tried.

    Returns:
        Options of generate, one dict per candidate.
    """
    block = preset_of(family)["block_length"]
    blocks = [block]
    for factor in LARGER_BLOCKS if family.block_length is None and family.attention == "bidirectional" else ():
        if blocks[-1] < max_new_tokens:
            blocks.append(factor * block)
    policies = [name for name in POLICY_GRID[family.attention] if name in POLICIES.parts]
    decoders = [(name, values) for name, grid in DECODER_GRID.items() if name in DECODERS.parts for values in grid]
    plain: list[Config] = [
        {"decoder": name, **values, "cache_policy": policy, "block_length": length}
        for name, values in decoders
        for policy in policies
        for length in blocks
    ]
    ahead = [config for config in plain if all(config[option] in names for option, names in AHEAD.items())]
    return plain + [{**config, "lookahead": values} for config in ahead for values in LOOKAHEAD_GRID]


class _Reached(Exception):
    """The first forward was about to begin."""


def check_candidates(
    model: Any, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], configs: Sequence[Config], **options: Any
) -> list[ValueError | None]:
    """Makes every check of generate for every configuration, and runs no forward.

    Args:
        model, tokenizer: with our `generate`.
        texts: prompts; the longest one is checked against the model's limits.
        configs: options of generate.
        options: those that all configurations have, unless they say otherwise.

    Returns:
        Per configuration, the error with which generate refuses it, or None.
    """
    longest = max(texts, key=lambda text: encode(tokenizer, [user(text)])["input_ids"].shape[1])
    hook = body_of(model).register_forward_pre_hook(_stop)
    refusals: list[ValueError | None] = []
    try:
        for config in configs:
            refusal = None
            try:
                reply(model, tokenizer, [user(longest)], **{**options, **config})
            except _Reached:
                pass
            except ValueError as error:
                refusal = error
            refusals.append(refusal)
    finally:
        hook.remove()
    return refusals


def _stop(*args: Any) -> None:
    raise _Reached
