"""The options of diffusion decoding."""

import dataclasses
import warnings
from typing import Any

from transformers import GenerationConfig

from .caches import POLICIES, CachePolicy
from .decoders import DECODERS, Decoder
from .families import Family
from .registry import Registry, is_int, is_number, require
from .schedules import SCHEDULES, Schedule

PRESETS = ("published", "quality", "balanced", "speed")
KINDS: tuple[Registry, ...] = (DECODERS, SCHEDULES, POLICIES)
FLAT_HYPER_PARAMETERS = ("block_length", "steps", "steps_per_block", "threshold")
OWN_FIELDS = (
    *("decoder", "schedule", "cache_policy", "decoder_config", "schedule_config", "policy_config"),
    *FLAT_HYPER_PARAMETERS,
    *("smoothing", "infill", "preset", "mask_token_id", "logits_shift", "attention"),
)
# Ways to decode that belong to left-to-right models; value that means "off" besides None.
AUTOREGRESSIVE_ONLY: dict[str, Any] = {
    "num_beams": 1,
    "use_mtp": False,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "is_assistant": False,
    "token_healing": False,
    "penalty_alpha": None,
    "dola_layers": None,
    "low_memory": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "constraints": None,
    "force_words_ids": None,
    "prefill_chunk_size": None,
    "watermarking_config": None,
    "cache_config": None,
    "compile_config": None,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_logits": False,
}
_STOCK_FIELDS = frozenset(vars(GenerationConfig())) | {"_commit_hash", "_original_object_hash", "_mask_length"}


class DiffusionGenerationConfig(GenerationConfig):
    """Options of `generate` for diffusion language models, on top of transformers' `GenerationConfig`.

    Every option may be left None: then the model's own generation config decides, and at last the preset of the
    model's family.

    Args:
        decoder (`str` or `Decoder`): which predictions of a step are committed: `"fixed"`, `"threshold"`, `"factor"`,
            `"hierarchical"`, `"remasking"`, `"credit"`.
        schedule (`str` or `Schedule`): which positions may be committed now: `"blockwise"`.
        cache_policy (`str` or `CachePolicy`): what a step recomputes: `"none"`, `"prefix"`, `"dual"`, `"vicinity"`.
        decoder_config, schedule_config, policy_config (`dict`): further hyper-parameters of the three.
        block_length (`int`): positions of a block; longer than the answer decodes the whole canvas at once.
        steps (`int`): denoising steps over the whole answer (decoder `"fixed"`). Unset: one token per step.
        steps_per_block (`int`): denoising steps of each block; excludes `steps`.
        threshold (`float`): confidence in (0, 1] from which a position is committed.
        smoothing: not available in this version; must be None or False.
        infill (`bool`): fill the mask tokens inside the prompt, and append nothing.
        preset (`str`): `"published"`, `"quality"`, `"balanced"` or `"speed"`: the family's defaults of every option.
        mask_token_id (`int`), logits_shift (`bool`), attention (`"bidirectional"` or `"block_causal"`): facts of the
            model, for one that belongs to no known family.
        kwargs: options of transformers' `GenerationConfig`.

    Raises:
        ValueError: an unknown option, or a value that is not allowed; names the option, the value and what is.

    Example:
        >>> config = DiffusionGenerationConfig(decoder="threshold", threshold=0.9, cache_policy="dual")
        >>> model.generate(**inputs, max_new_tokens=256, generation_config=config)
    """

    decoder: str | Decoder | None
    schedule: str | Schedule | None
    cache_policy: str | CachePolicy | None
    decoder_config: dict[str, Any] | None
    schedule_config: dict[str, Any] | None
    policy_config: dict[str, Any] | None
    block_length: int | None
    steps: int | None
    steps_per_block: int | None
    threshold: float | None
    smoothing: bool | None
    infill: bool | None
    preset: str | None
    mask_token_id: int | None
    logits_shift: bool | None
    attention: str | None

    def __init__(self, **kwargs: Any):
        if not kwargs.get("_from_model_config"):
            refuse_unknown(set(kwargs) - _STOCK_FIELDS - set(OWN_FIELDS))
        for name in OWN_FIELDS:
            setattr(self, name, kwargs.pop(name, None))
        super().__init__(**kwargs)

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        """Checks every option on its own. Raises ValueError; warns about options without effect."""
        super().validate(strict=strict, user_set_attributes=user_set_attributes)
        _validate_sampling(self)
        for name in ("infill", "logits_shift"):
            require(getattr(self, name) in (None, True, False), name, getattr(self, name), "a bool")
        require(self.smoothing in (None, False), "smoothing", self.smoothing, "None or False in this version")
        require(self.preset in (None, *PRESETS), "preset", self.preset, f"one of {list(PRESETS)}")
        kinds = ("bidirectional", "block_causal")
        require(self.attention in (None, *kinds), "attention", self.attention, f"one of {list(kinds)}")
        mask = self.mask_token_id
        require(mask is None or (is_int(mask) and mask >= 0), "mask_token_id", mask, "an int >= 0")
        if self.steps is not None and self.steps_per_block is not None:
            raise ValueError(f"`steps` is {self.steps} and `steps_per_block` is {self.steps_per_block}: set only one.")
        for option in FLAT_HYPER_PARAMETERS:
            self._validate_flat(option)
        for kind in KINDS:
            home = getattr(self, kind.home)
            require(home is None or isinstance(home, dict), kind.home, home, "a dict")
            if getattr(self, kind.option) is not None:
                self.build(kind)

    def _validate_flat(self, option: str) -> None:
        """Checks a flat hyper-parameter even where the part that takes it is not chosen yet."""
        value = getattr(self, option)
        if option == "threshold":
            allowed = value is None or (is_number(value) and 0 < value <= 1)
            require(allowed, option, value, "a number in (0, 1]")
        else:
            require(value is None or (is_int(value) and value > 0), option, value, "an int > 0")

    def update(self, defaults_only: bool = False, allow_custom_entries: bool = False, **kwargs: Any) -> dict[str, Any]:
        """As transformers'; hyper-parameters of a part that the choice with precedence replaces go with it."""
        if defaults_only:
            kwargs = outranked_by(vars(self), kwargs)
        else:
            vars(self).update(outranked_by(kwargs, {name: getattr(self, name) for name in OWN_FIELDS}))
        return super().update(defaults_only=defaults_only, allow_custom_entries=allow_custom_entries, **kwargs)

    def build(self, kind: Registry) -> Any:
        """Makes the decoder, schedule or cache policy that this config asks for."""
        flat = {option: getattr(self, option) for option in FLAT_HYPER_PARAMETERS}
        return kind.build(getattr(self, kind.option), getattr(self, kind.home), **flat)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an instance becomes its name and its hyper-parameters."""
        output = super().to_dict()
        for kind in KINDS:
            part = getattr(self, kind.option)
            if part is not None and not isinstance(part, str):
                name = getattr(part, "name", type(part).__name__)
                values = dataclasses.asdict(part)
                output[kind.option] = name
                output[kind.home] = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return output

    def to_diff_dict(self) -> dict[str, Any]:
        """As transformers', without the own options that are unset."""
        return {k: v for k, v in super().to_diff_dict().items() if v is not None or k not in OWN_FIELDS}

    @staticmethod
    def _get_default_generation_params() -> dict[str, Any]:
        # transformers' default of top_k is 50, which no diffusion model was published with.
        return {**GenerationConfig._get_default_generation_params(), "top_k": None}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any):
        """As transformers'; entries of a file that nobody knows are dropped with a warning."""
        known = {k: v for k, v in config_dict.items() if k in _STOCK_FIELDS or k in OWN_FIELDS}
        unknown = sorted(set(config_dict) - set(known))
        if unknown and not kwargs.get("_from_model_config"):
            warnings.warn(f"Unknown entries of a generation config are dropped: {unknown}.", stacklevel=2)
        return super().from_dict(known, **kwargs)

    @classmethod
    def from_model_config(cls, model_config: Any) -> "DiffusionGenerationConfig":
        """As transformers', which reads each attribute from its base class and so fails for a subclass with fields."""
        config = cls.upgrade(GenerationConfig.from_model_config(model_config))
        # With this mark in a saved file, transformers would drop our own options when it loads the model.
        config._from_model_config = None
        # `use_cache: false` of a published model config is about plain forwards.
        config.use_cache = None
        return config

    @classmethod
    def upgrade(cls, config: GenerationConfig) -> "DiffusionGenerationConfig":
        """Returns `config` if it is one of ours, else ours with the same values."""
        if isinstance(config, cls):
            return config
        upgraded = cls()
        for key, value in vars(config).items():
            if key in _STOCK_FIELDS or key in OWN_FIELDS or key.startswith("_"):
                setattr(upgraded, key, value)
        upgraded.validate(user_set_attributes=set())
        if hasattr(config, "_original_object_hash"):
            upgraded._original_object_hash = hash(upgraded)
        return upgraded


def outranked_by(choice: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Returns `values` without what `choice` makes void: own options of lower precedence that say otherwise.

    Those are the hyper-parameters of a decoder, schedule or policy other than the chosen one, and hyper-parameters that
    the choice gives in another way: flat or in a dict, in an instance, `steps` or `steps_per_block`.
    """
    left = dict(values)
    flat = {name for name in FLAT_HYPER_PARAMETERS if choice.get(name) is not None}
    for kind in KINDS:
        part, home = choice.get(kind.option), left.get(kind.home)
        if part is not None and part != left.get(kind.option):
            home = None
        if isinstance(home, dict):
            home = {key: value for key, value in home.items() if key not in flat}
        if kind.home in left:
            left[kind.home] = home
        given = set(choice[kind.home]) if isinstance(choice.get(kind.home), dict) else set()
        if dataclasses.is_dataclass(part):
            given |= {field.name for field in dataclasses.fields(part)}
        left.update(dict.fromkeys(given & set(FLAT_HYPER_PARAMETERS) & set(left)))
    for one, other in (("steps", "steps_per_block"), ("steps_per_block", "steps")):
        if one in flat and other in left:
            left[other] = None
    return left


def _validate_sampling(config: GenerationConfig) -> None:
    value = config.temperature
    require(value is None or (is_number(value) and value >= 0), "temperature", value, "a number >= 0")
    value = config.top_p
    require(value is None or (is_number(value) and 0 < value <= 1), "top_p", value, "a number in (0, 1]")
    value = config.top_k
    require(value is None or (is_int(value) and value >= 0), "top_k", value, "an int >= 0")
    value = config.min_new_tokens
    require(value is None or (is_int(value) and value >= 0), "min_new_tokens", value, "an int >= 0")
    value = config.guidance_scale
    require(value is None or is_number(value), "guidance_scale", value, "a number")


def refuse_unknown(names: set[str]) -> None:
    """Raises ValueError for options that do not exist, and says where a hyper-parameter belongs."""
    if not names:
        return
    homes = {key: place for kind in KINDS for key, place in kind.homes().items()}
    hints = [f"`{name}` is a hyper-parameter: pass {homes[name]}" for name in sorted(names) if name in homes]
    raise ValueError(f"Unknown generation options: {sorted(names)}. " + "; ".join(hints))


def refuse_autoregressive(config: GenerationConfig) -> None:
    """Raises ValueError for options that only left-to-right decoding can honour."""
    for name, off in AUTOREGRESSIVE_ONLY.items():
        value = getattr(config, name, None)
        if value is not None and value != off:
            raise ValueError(f"`{name}` is {value!r}, but diffusion decoding does not support it: leave it None.")
    allowed = (None, "dynamic", "static")
    require(
        config.cache_implementation in allowed, "cache_implementation", config.cache_implementation, f"one of {allowed}"
    )


def resolve(config: DiffusionGenerationConfig, explicit: set[str], family: Family) -> DiffusionGenerationConfig:
    """Fills what is unset from the family's preset, in place, and checks that the parts fit together.

    Args:
        config: call arguments, passed config and the model's config, merged.
        explicit: options that the call or the passed config set; those without effect warn.
        family: of the model.
    """
    if config.use_cache is False and "cache_policy" in explicit and config.cache_policy != "none":
        raise ValueError(f"`use_cache` is False, but `cache_policy` is {config.cache_policy!r}: set only one of them.")
    preset = {"decoder": "fixed", "schedule": "blockwise", "cache_policy": "none"}
    preset.update(family.presets.get(config.preset or "published", {}))
    takes = {}
    for kind in KINDS:
        if getattr(config, kind.option) is None:
            setattr(config, kind.option, preset[kind.option])
        chosen = getattr(config, kind.option)
        if chosen == preset[kind.option] and getattr(config, kind.home) is None:
            setattr(config, kind.home, preset.get(kind.home))
        takes[kind.option] = {
            f.name for f in dataclasses.fields(kind.find(chosen) if isinstance(chosen, str) else chosen)
        }
    for option in FLAT_HYPER_PARAMETERS:
        owner = "schedule" if option == "block_length" else "decoder"
        fits = isinstance(config.schedule, str) if owner == "schedule" else config.decoder == preset["decoder"]
        if fits and getattr(config, option) is None and not _is_given_inside(config, option):
            setattr(config, option, preset.get(option))
        if option in explicit and getattr(config, option) is not None and not any(option in t for t in takes.values()):
            parts = [str(getattr(config, kind.option)) for kind in KINDS]
            warnings.warn(f"`{option}` has no effect with {', '.join(parts)}.", UserWarning, stacklevel=4)
    if config.infill:
        if "max_new_tokens" in explicit:
            warnings.warn("`max_new_tokens` has no effect with `infill`.", UserWarning, stacklevel=4)
        # Nothing is appended. transformers wants room for one token, and limits what has no limit of its own.
        config.max_new_tokens = 1
    return config


def _is_given_inside(config: DiffusionGenerationConfig, option: str) -> bool:
    return any(option in (getattr(config, kind.home) or {}) for kind in KINDS)
