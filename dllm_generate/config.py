"""The options of diffusion decoding."""

import dataclasses
import warnings
from typing import Any

from transformers import GenerationConfig

from .caches import CachePolicy
from .decoders import Decoder
from .families import preset_names, translated
from .lookahead import Lookahead
from .options import FLAT_HYPER_PARAMETERS, KINDS, OWN_FIELDS, refuse_unknown, validate_sampling
from .precedence import outranked_by
from .registry import Registry, is_int, is_number, require
from .schedules import Schedule
from .smoothing import Smoothing

_STOCK_FIELDS = frozenset(vars(GenerationConfig())) | {"_commit_hash", "_original_object_hash", "_mask_length"}


class DiffusionGenerationConfig(GenerationConfig):
    """Options of `generate` for diffusion language models, on top of transformers' `GenerationConfig`.

    Every option may be left None: then the model's own generation config decides, and at last the preset of the
    model's family.

    Args:
        decoder (`str` or `Decoder`): which predictions of a step are committed: `"fixed"`, `"threshold"`, `"factor"`,
            `"joint"`, `"hierarchical"`, `"remasking"`, `"credit"`, `"entropy_bound"`, `"klass"`, `"wino"`, `"dynamic"`,
            `"editing"`, `"paced"`, `"dream"`, `"renoise"`.
        schedule (`str` or `Schedule`): which positions may be committed now: `"blockwise"`, `"block_diffusion"`,
            `"seeded"`.
        cache_policy (`str` or `CachePolicy`): what a step recomputes: `"none"`, `"prefix"`, `"dual"`, `"vicinity"`,
            `"block"`, `"sub_block"`.
        decoder_config, schedule_config, policy_config (`dict`): further hyper-parameters of the three.
        block_length (`int`): positions of a block; longer than the answer decodes the whole canvas at once.
        steps (`int`): denoising steps over the whole answer (decoder `"fixed"`). Unset: one token per step.
        steps_per_block (`int`): denoising steps of each block; excludes `steps`.
        threshold (`float`): confidence in (0, 1] from which a position is committed.
        smoothing (`bool` or `dict`): feed open positions what the last forward thought of them; a dict holds fields of
            [`Smoothing`]. Needs a decoder with a threshold.
        lookahead (`bool` or `dict`): run guesses of the next states beside every row, so that it takes several steps
            in one forward; a dict holds fields of [`Lookahead`]. True is lossless.
        unroll_steps (`int`): steps from one host read to the next, 1 if unset. On a GPU, reading less often keeps it
            busy; up to so many forwards less one are run for nothing at the end of a block.
        infill (`bool`): fill the mask tokens inside the prompt, and append nothing.
        preset (`str`): the family's defaults of every option: `"published"`, `"quality"`, `"balanced"`, `"speed"`, or
            one that the family has besides these.
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
    smoothing: bool | dict[str, Any] | None
    lookahead: bool | dict[str, Any] | None
    unroll_steps: int | None
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
        validate_sampling(self)
        super().validate(strict=strict, user_set_attributes=user_set_attributes)
        for name in ("infill", "logits_shift"):
            require(getattr(self, name) in (None, True, False), name, getattr(self, name), "a bool")
        Smoothing.of(self.smoothing)
        Lookahead.of(self.lookahead)
        unroll = self.unroll_steps
        require(unroll is None or (is_int(unroll) and unroll > 0), "unroll_steps", unroll, "an int > 0")
        require(self.preset in (None, *preset_names()), "preset", self.preset, f"one of {preset_names()}")
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

    @property
    def unknown_attributes(self) -> set[str]:
        """Attributes that someone set later and that are no options, such as misspelt ones."""
        return {name for name in vars(self) if name[0] != "_"} - _STOCK_FIELDS - set(OWN_FIELDS)

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

    def to_json_file(self, *args: Any, **kwargs: Any) -> None:
        """As transformers'. Raises ValueError for an instance whose class is not registered under a name."""
        for kind, registry in zip(KINDS, ("DECODERS", "SCHEDULES", "POLICIES")):
            kind.refuse_unregistered(getattr(self, kind.option), f"dllm_generate.{registry}.register")
        super().to_json_file(*args, **kwargs)

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
        vars(upgraded).update(translated(config))
        # With this mark in a saved file, transformers would drop our own options when it loads the model.
        upgraded._from_model_config = None
        upgraded.validate(user_set_attributes=set())
        if hasattr(config, "_original_object_hash"):
            upgraded._original_object_hash = hash(upgraded)
        return upgraded
