"""The facts of a model family, and the registry that finds them for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from dllm_generate.families.presets import default_presets

ATTENTION_KINDS = ("bidirectional", "block_causal")
_BY_HAND = ("mask_token_id", "logits_shift", "attention")


@dataclass(frozen=True)
class Family:
    """What decoding has to know about a model family.

    Args:
        name: short name, used in error messages.
        mask_token_id: id of the mask token; None in the registry, filled in per model by `family_of`.
        logits_shift: True if the hidden row of position s - 1 predicts position s.
        attention: `"bidirectional"` or `"block_causal"`.
        block_length: a block size fixed by the architecture; None if it is free. In `family_of`, the `block_length` of
            the model's config wins.
        prompt_is_one_block: whether a block-causal model sees the prompt as one block or as many.
        special_token_ids: ids of the published vocabulary that decoding may suppress (`"eos"`, `"eot"`).
        presets: preset name -> keywords of `DiffusionGenerationConfig`.

    Raises:
        ValueError: if `attention` is neither of the two kinds.
    """

    name: str
    mask_token_id: int | None = None
    logits_shift: bool = False
    attention: str = "bidirectional"
    block_length: int | None = None
    prompt_is_one_block: bool = True
    special_token_ids: dict[str, int] = field(default_factory=dict)
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.attention not in ATTENTION_KINDS:
            raise ValueError(f"`attention` must be one of {', '.join(ATTENTION_KINDS)}, got {self.attention!r}.")


class _Entry(NamedTuple):
    family: Family
    config_class: type[PreTrainedConfig]
    architectures: frozenset[str]


_REGISTRY: dict[str, _Entry] = {}


def register_family(family: Family, config_class: type[PreTrainedConfig], architectures: tuple[str, ...] = ()) -> None:
    """Make a family known to `family_of`. Registering a name again replaces it.

    Args:
        family: the facts, without a mask id.
        config_class: the native config class; other config classes match by its `model_type`.
        architectures: published class names, which tell families of one `model_type` apart.
    """
    _REGISTRY[family.name] = _Entry(family, config_class, frozenset(architectures))


def _registered(config: Any) -> Family | None:
    names = set(getattr(config, "architectures", None) or ())
    model_type = getattr(config, "model_type", None)
    native = [entry for entry in _REGISTRY.values() if isinstance(config, entry.config_class)]
    entries = native or [entry for entry in _REGISTRY.values() if entry.config_class.model_type == model_type]
    named = [entry for entry in native or _REGISTRY.values() if names & entry.architectures]
    # An unknown name on a native config is a user's subclass. On a foreign config it may be another model altogether:
    # LLaDA-MoE has been published under LLaDA's model_type.
    fallback = [entry for entry in entries if native or not names or not entry.architectures]
    return next((entry.family for entry in named or fallback), None)


def family_of(model: Any, overrides: Any = None, tokenizer: Any = None) -> Family:
    """The family of a model, with its mask id.

    Args:
        model: found by the class of its config, else by `model_type` and `architectures`.
        overrides: mapping or object (a generation config) whose `mask_token_id`, `logits_shift` and `attention` win
            where not None, and make a family by hand. Another kind of attention brings the presets of that kind.
        tokenizer: gives the mask id if neither `overrides` nor the model's config has one.

    Returns:
        A `Family` with a valid `mask_token_id`; `special_token_ids` outside the model's vocabulary are dropped.

    Raises:
        ValueError: for an unknown model without the three options, and for a missing or impossible mask id.
    """
    config = getattr(model, "config", None)
    read = overrides.get if isinstance(overrides, Mapping) else lambda name: getattr(overrides, name, None)
    given = {name: read(name) for name in _BY_HAND}
    for source in (config, tokenizer):
        if given["mask_token_id"] is None:
            given["mask_token_id"] = getattr(source, "mask_token_id", None)
    family = _registered(config)
    if family is None:
        if None in given.values():
            raise ValueError(
                f"{type(model).__name__} belongs to no supported family ({', '.join(sorted(_REGISTRY))}). To decode it "
                f"all the same, give the options {', '.join(f'`{name}`' for name in _BY_HAND)}."
            )
        family = Family("custom", presets=default_presets("bidirectional"))
    family = _with_blocks_of(config, family)
    if given["attention"] not in (None, family.attention):
        family = replace(family, presets=default_presets(given["attention"], family.block_length or 32))
    family = replace(family, **{name: value for name, value in given.items() if value is not None})
    return _fit_to_vocabulary(family, model)


def _with_blocks_of(config: Any, family: Family) -> Family:
    """A family with fixed blocks gets the length that the model's config states, since releases differ in it."""
    length = getattr(config, "block_length", None)
    if None in (length, family.block_length) or length == family.block_length:
        return family
    presets = {name: {**preset, "block_length": length} for name, preset in family.presets.items()}
    return replace(family, block_length=length, presets=presets)


def _fit_to_vocabulary(family: Family, model: Any) -> Family:
    if family.mask_token_id is None:
        raise ValueError("No mask token: set `mask_token_id` in the generation config, or in the model's config.")
    embeddings = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    rows = getattr(embeddings, "num_embeddings", None)
    if rows is None:
        return family
    if not 0 <= family.mask_token_id < rows:
        raise ValueError(f"`mask_token_id` is {family.mask_token_id}, but the model has {rows} token embeddings.")
    return replace(family, special_token_ids={k: v for k, v in family.special_token_ids.items() if v < rows})
