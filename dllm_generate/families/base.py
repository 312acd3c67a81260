"""The facts of a model family, and the registry that finds them for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import PreTrainedConfig

from dllm_generate.families.presets import default_presets
from dllm_generate.registry import require
from dllm_generate.traits import traits_of

if TYPE_CHECKING:
    from dllm_generate.backbone import Backbone

ATTENTION_KINDS = ("bidirectional", "block_causal")
NOISES = ("mask", "uniform")
NO_MASK = -1
_BY_HAND = ("mask_token_id", "logits_shift", "attention")


@dataclass(frozen=True)
class Family:
    """What decoding has to know about a model family.

    Args:
        name: short name, used in error messages.
        mask_token_id: id of the mask token; None in the registry, filled in per model by `family_of`.
        logits_shift: True if the hidden row of position s - 1 predicts position s.
        attention: `"bidirectional"` or `"block_causal"`.
        block_length: a block size fixed by the architecture; None if it is free. In `family_of`, the one that the
            model's config states wins.
        block_length_field: what the model's config calls it.
        prompt_is_one_block: whether a block-causal model sees the prompt as one block or as many.
        noise: what open positions hold: `"mask"`, the mask token, or `"uniform"`, random tokens. Then there is no mask
            id, and `family_of` gives -1 for it.
        backbone: runs the models of the family, where they are no body with a head on top; a subclass of
            `dllm_generate.backbone.Backbone`.
        takes_cache: False for a model whose forward cannot be given a cache; `family_of` knows from `attach`.
        special_token_ids: ids of the published vocabulary that decoding may suppress (`"eos"`, `"eot"`).
        presets: preset name -> keywords of `DiffusionGenerationConfig`. Those of [`default_presets`] that are missing
            are taken from there; others are the family's own.

    Raises:
        ValueError: if `attention` or `noise` is neither of the two kinds.
    """

    name: str
    mask_token_id: int | None = None
    logits_shift: bool = False
    attention: str = "bidirectional"
    block_length: int | None = None
    block_length_field: str = "block_length"
    prompt_is_one_block: bool = True
    noise: str = "mask"
    backbone: type[Backbone] | None = None
    takes_cache: bool = True
    special_token_ids: dict[str, int] = field(default_factory=dict)
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.attention not in ATTENTION_KINDS:
            raise ValueError(f"`attention` must be one of {', '.join(ATTENTION_KINDS)}, got {self.attention!r}.")
        if self.noise not in NOISES:
            raise ValueError(f"`noise` must be one of {', '.join(NOISES)}, got {self.noise!r}.")


class Entry(NamedTuple):
    """What was registered together, see [`register_family`]."""

    family: Family
    config_class: type[PreTrainedConfig]
    architectures: frozenset[str]
    model_class: type | None


_REGISTRY: dict[str, Entry] = {}


def registered_families() -> list[Entry]:
    """All families, by name."""
    return [_REGISTRY[name] for name in sorted(_REGISTRY)]


def preset_names() -> list[str]:
    """What the option `preset` may be for some family; the presets that all families have come first."""
    own = [name for entry in _REGISTRY.values() for name in entry.family.presets]
    return list(dict.fromkeys([*default_presets("bidirectional"), *own]))


def register_family(
    family: Family,
    config_class: type[PreTrainedConfig],
    architectures: tuple[str, ...] = (),
    model_class: type | None = None,
) -> None:
    """Make a family known to `family_of`. Registering a name again replaces it.

    Args:
        family: the facts, without a mask id.
        config_class: the native config class; other config classes match by its `model_type`.
        architectures: published class names, which tell families of one `model_type` apart.
        model_class: the native class of models with a head, for [`support_table`].
    """
    _REGISTRY[family.name] = Entry(family, config_class, frozenset(architectures), model_class)


_TRANSLATIONS: dict[str, Callable[[Any], dict[str, Any]]] = {}


def register_translation(name: str, translate: Callable[[Any], dict[str, Any]]) -> None:
    """Makes a generation config class of a published sampler known, by its name.

    Args:
        name: of the class.
        translate: gives, for an instance, what it says as options of `DiffusionGenerationConfig`.
    """
    _TRANSLATIONS[name] = translate


def translated(config: Any) -> dict[str, Any]:
    """What a generation config says in the words of another sampler, as options of `DiffusionGenerationConfig`."""
    known = (_TRANSLATIONS.get(cls.__name__) for cls in type(config).__mro__)
    translate = next(filter(None, known), None)
    return {} if translate is None else translate(config)


def known_family(model: Any) -> Family | None:
    """The family that a model is registered under, as it is in the registry; None if there is none."""
    return _registered(getattr(model, "config", None))


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
        A `Family` with a valid `mask_token_id`, or -1 if it has no mask; `special_token_ids` outside the model's
        vocabulary are dropped.

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
    if family.noise != "mask":
        option = read("mask_token_id")
        require(option is None, "mask_token_id", option, f"None: open positions of {family.name!r} hold random tokens")
        given["mask_token_id"] = NO_MASK
    family = with_blocks_of(config, family)
    if given["attention"] not in (None, family.attention):
        family = replace(family, presets=default_presets(given["attention"], family.block_length or 32))
    family = replace(family, **{name: value for name, value in given.items() if value is not None})
    family = family if traits_of(model).takes_cache else replace(family, takes_cache=False)
    return _fit_to_vocabulary(family, model)


def with_blocks_of(config: Any, family: Family) -> Family:
    """A family with fixed blocks gets the length that the model's config states, since releases differ in it."""
    length = getattr(config, family.block_length_field, None)
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
    if family.noise == "mask" and not 0 <= family.mask_token_id < rows:
        raise ValueError(f"`mask_token_id` is {family.mask_token_id}, but the model has {rows} token embeddings.")
    return replace(family, special_token_ids={k: v for k, v in family.special_token_ids.items() if v < rows})
