"""LoRA adapters of published checkpoints on the native classes, whose layers have other names.

Transformers and peft give the tensors of an adapter the names of the model, as they do for a checkpoint. The names of
the target modules in the adapter's config stay as they were: layers that are called otherwise would be left out.
"""

from collections.abc import Iterable
from typing import Any


def adapter_config(model: Any, adapter: str, **hub: Any) -> Any:
    """Reads the config of an adapter, and gives its target modules the names that they have in `model`.

    `model.load_adapter(adapter)` of a native class does this by itself; for peft's own classes:
    `PeftModel.from_pretrained(model, adapter, config=adapter_config(model, adapter))`.

    Args:
        model: a native model, such as `LLaDAForMaskedDiffusion`.
        adapter: folder, or id on the Hub.
        hub: of `PeftConfig.from_pretrained` (`revision`, `token`, ...).

    Returns:
        The `PeftConfig`. One whose targets are no list of names, or all belong to the model, is returned as it is.

    Raises:
        ValueError: for a layer of the adapter that the model does not have.
    """
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    config = PeftConfig.from_pretrained(str(adapter), **hub)
    if not _foreign(model, config):
        return config
    keys = load_peft_weights(str(adapter), device="cpu", **hub)
    names = _renamed(model, {key.removeprefix("base_model.model.").split(".lora_")[0] for key in keys})
    modules = dict(model.named_modules())
    missing = sorted(old for old, new in names.items() if new not in modules)
    if missing:
        raise ValueError(f"The adapter {str(adapter)!r} has layers that {type(model).__name__} has not: {missing[:3]}.")
    config.target_modules = _shortest(set(names.values()), modules)
    for pattern in ("rank_pattern", "alpha_pattern"):
        given = getattr(config, pattern, None) or {}
        setattr(config, pattern, {_translated(name, names): value for name, value in given.items()})
    return config


class PublishedAdapters:
    """Base of native classes whose layers have other names than the published ones."""

    def load_adapter(self, peft_model_id: Any = None, adapter_name: Any = None, peft_config: Any = None, **kwargs: Any):
        """As that of transformers, which this calls; also for adapters of the published layout."""
        if peft_config is None and peft_model_id is not None:
            hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir") if kwargs.get(key) is not None}
            peft_config = adapter_config(self, peft_model_id, **hub)
        return super().load_adapter(  # type: ignore[misc]
            peft_model_id, adapter_name, peft_config=peft_config, **kwargs
        )


def check_targets(model: Any) -> None:
    """Raises ValueError for a model with an adapter of which some target modules were not found."""
    for config in getattr(model, "peft_config", {}).values():
        foreign = _foreign(model, config)
        if foreign:
            raise ValueError(
                f"The adapter targets {foreign}, but {type(model).__name__} has no layers of these names, so that only "
                "the rest of it was loaded. Load it with `model.load_adapter(folder)`, or pass peft "
                "`config=dllm_generate.families.adapters.adapter_config(model, folder)`."
            )


def _foreign(model: Any, config: Any) -> list[str]:
    """Target modules of an adapter that the model does not have."""
    targets = getattr(config, "target_modules", None)
    if not targets or isinstance(targets, str):
        return []
    ends = {part for name, _ in model.named_modules() for part in _suffixes(name)}
    return sorted(set(targets) - ends)


def _suffixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]


def _renamed(model: Any, modules: Iterable[str]) -> dict[str, str]:
    """Gives modules the names that loading a checkpoint would give them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [entry for entry in get_model_conversion_mapping(model) if isinstance(entry, WeightRenaming)]
    rename = lambda name: rename_source_key(f"{name}.weight", renamings, [])[0].removesuffix(".weight")
    return {name: rename(name) for name in modules}


def _shortest(wanted: set[str], modules: Iterable[str]) -> list[str]:
    """The last parts of the names where they mean the wanted modules and no others; else the full names."""
    ends = {name.rpartition(".")[2] for name in wanted}
    meant = {name for name in modules if name.rpartition(".")[2] in ends}
    return sorted(ends if meant == wanted else wanted)


def _translated(pattern: str, names: dict[str, str]) -> str:
    ends = {old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in names.items()}
    return names.get(pattern, ends.get(pattern, pattern))
