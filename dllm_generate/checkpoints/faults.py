"""A checkpoint held against the model that it is for: what is missing, left over or of another shape."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.core_model_loading import dot_natural_key, revert_weight_conversion
from transformers.utils.loading_report import LoadStateDictInfo

from .deferred import Deferred


@dataclass
class Native:
    """The tensors of a checkpoint in the layout of the model.

    Attributes:
        tensors: name -> tensor, of what the model takes.
        renamed: stored name -> names in the model, where they differ.
        rules: conversion rule -> number of stored names that it changed.
        missing: names that the checkpoint lacks, as its own layout calls them.
        unexpected: stored names that the model has no place for.
        unjoinable: stored name -> its dtype, which the tensors that it is joined with do not have in common.
        mismatched: name, as the checkpoint's layout calls it -> its shape there, and that which the model needs.
        layout: `"published"`, `"native"`, `"mixed"`, or `"one"` where both have the same names.
    """

    tensors: dict[str, Deferred] = field(default_factory=dict)
    renamed: dict[str, list[str]] = field(default_factory=dict)
    rules: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    unjoinable: dict[str, torch.dtype] = field(default_factory=dict)
    mismatched: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    layout: str = "one"


def to_published(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, Deferred]:
    """The tensors of a model under their published names, fused or split as published.

    Args:
        model: on the meta device, not loaded from a checkpoint.
        tensors: deferred tensors by the names of the model.
    """
    return revert_weight_conversion(model, dict(tensors))


def find_faults(
    found: Native, model: Any, expected: Mapping[str, torch.Tensor], stored: Mapping[str, Deferred]
) -> None:
    """Fills in `missing`, `unexpected`, `mismatched` and `layout`.

    Args:
        found: what could be read.
        model: on the meta device.
        expected: its tensors.
        stored: those of the checkpoint.
    """
    published = to_published(model, {name: _outline(name, tensor) for name, tensor in expected.items()})
    found.layout = _layout(set(expected), set(published), set(stored), bool(found.rules))
    parts: dict[str, list[str]] = {name: [name] for name in expected} if found.layout == "native" else {}
    if not parts:
        for name, tensor in published.items():
            for origin in tensor.origins:
                parts.setdefault(origin, []).append(name)
    shapes = {name: tensor.shape for name, tensor in {**expected, **published}.items()}
    missing: set[str] = set()
    absent = _absent(found, model, expected)
    wrong = {name for name, tensor in found.tensors.items() if tensor.shape != expected[name].shape}
    for target in sorted(absent | wrong, key=dot_natural_key):
        origins = found.tensors[target].origins if target in wrong else frozenset()
        # A tensor that has another name at most, and possibly one that the parts do not know.
        alone = list(origins) if len(origins) == 1 else []
        lost = [part for part in parts.get(target, [target]) if part not in stored and not alone]
        odd = alone or [part for part in parts.get(target, ()) if part in stored and stored[part].shape != shapes[part]]
        missing.update(lost)
        for part in odd:
            found.mismatched[part] = (list(stored[part].shape), list(shapes.get(part, shapes[target])))
        if not lost and not odd:
            missing.add(target)
    found.missing = sorted(missing, key=dot_natural_key)


def _absent(found: Native, model: Any, expected: Mapping[str, torch.Tensor]) -> set[str]:
    """Tensors of the model that the checkpoint lacks, by the rules of the model's own loading."""
    info = LoadStateDictInfo(
        missing_keys=set(expected) - set(found.tensors),
        unexpected_keys=set(found.unexpected),
        mismatched_keys=set(),
        error_msgs=[],
        conversion_errors={},
        skipped_pp_keys=set(),
    )
    model._adjust_missing_and_unexpected_keys(info)
    found.unexpected = [name for name in found.unexpected if name in info.unexpected_keys]
    absent = set(info.missing_keys)
    for tied, source in getattr(model, "all_tied_weights_keys", {}).items():
        if not {tied, source} <= absent:
            absent -= {tied, source}
    return absent


def _outline(name: str, tensor: torch.Tensor) -> Deferred:
    def rows(start: int, stop: int) -> torch.Tensor:
        raise RuntimeError(f"{name} has no values.")

    return Deferred(tensor.shape, tensor.dtype, rows, frozenset([name]))


def _layout(native: set[str], published: set[str], stored: set[str], converted: bool) -> str:
    if native == published:
        return "one"
    if stored & (native - published):
        return "mixed" if stored & (published - native) else "native"
    return "published" if converted or stored & (published - native) else "native"
