"""Which option wins: call argument > passed config > the model's generation config > preset of the family."""

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

from .caches import POLICIES
from .families import Family
from .families.presets import preset_of
from .options import FLAT_HYPER_PARAMETERS, KINDS
from .registry import Registry

if TYPE_CHECKING:
    from .config import DiffusionGenerationConfig


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


def resolve(config: "DiffusionGenerationConfig", explicit: set[str], family: Family) -> None:
    """Fills what is unset from the family's preset, in place, and checks that the parts fit together.

    Args:
        config: call arguments, passed config and the model's config, merged.
        explicit: options that the call or the passed config set; those without effect warn.
        family: of the model.

    Raises:
        ValueError: for options that contradict each other, and for a preset that the family does not have.
    """
    if config.use_cache is False and "cache_policy" in explicit and config.cache_policy != "none":
        raise ValueError(f"`use_cache` is False, but `cache_policy` is {config.cache_policy!r}: set only one of them.")
    preset = preset_of(family, config.preset)
    if not family.takes_cache:
        preset = _without_cache(config, preset)
    for kind in KINDS:
        if getattr(config, kind.option) is None:
            setattr(config, kind.option, preset[kind.option])
        if getattr(config, kind.option) == preset[kind.option] and getattr(config, kind.home) is None:
            setattr(config, kind.home, preset.get(kind.home))
    for option in FLAT_HYPER_PARAMETERS:
        _fill_flat(config, option, preset)
    _warn_unused(config, explicit)
    if config.infill:
        # Nothing is appended. transformers wants room for one token, and limits what has no limit of its own.
        config.max_new_tokens = 1


def _without_cache(config: "DiffusionGenerationConfig", preset: dict[str, Any]) -> dict[str, Any]:
    """The preset of a model that takes no cache. Raises ValueError where the user wants one."""
    asked, ours = config.cache_policy, POLICIES.find(preset["cache_policy"])
    policy = POLICIES.find(asked) if isinstance(asked, str) else asked
    reason = "the model takes no cache, as was found when it was attached"
    if policy is not None and policy.uses_cache:
        raise ValueError(f"`cache_policy` is {getattr(policy, 'name', policy)!r}, but must be 'none': {reason}.")
    if policy is not None or not ours.uses_cache:
        return preset
    if config.use_cache is not False:
        text = f"The preset has `cache_policy` {ours.name!r}, but {reason}: every step recomputes everything."
        warnings.warn(text, UserWarning, stacklevel=6)
    return {**preset, "cache_policy": "none", "policy_config": None}


def _fill_flat(config: "DiffusionGenerationConfig", option: str, preset: dict[str, Any]) -> None:
    """Takes a flat hyper-parameter from the preset, unless it belongs to another part than the preset's."""
    fits = isinstance(config.schedule, str) if option == "block_length" else config.decoder == preset["decoder"]
    inside = any(option in (getattr(config, kind.home) or {}) for kind in KINDS)
    if fits and not inside and getattr(config, option) is None:
        setattr(config, option, preset.get(option))


def _warn_unused(config: "DiffusionGenerationConfig", explicit: set[str]) -> None:
    taken = {field for kind in KINDS for field in _fields(kind, getattr(config, kind.option))}
    for option in FLAT_HYPER_PARAMETERS:
        if option in explicit and option not in taken and getattr(config, option) is not None:
            parts = ", ".join(str(getattr(config, kind.option)) for kind in KINDS)
            warnings.warn(f"`{option}` has no effect with {parts}.", UserWarning, stacklevel=6)
    if config.infill and "max_new_tokens" in explicit:
        warnings.warn("`max_new_tokens` has no effect with `infill`.", UserWarning, stacklevel=6)


def _fields(kind: Registry, part: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind.find(part) if isinstance(part, str) else part)}
