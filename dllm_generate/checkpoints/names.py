"""From stored names to those of our layers, as transformers' registered conversions relate them."""

import copy
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    apply_converters,
    dot_natural_key,
    rename_source_key,
)

from .deferred import Deferred, cast, common_dtype
from .faults import Native, find_faults


def to_native(model: Any, stored: Mapping[str, Deferred]) -> Native:
    """The tensors of a checkpoint as `from_pretrained` would give them to the model.

    Args:
        model: on the meta device.
        stored: the tensors of a checkpoint, in whichever layout.
    """
    found, expected = Native(), model.state_dict()
    conversions = get_model_conversion_mapping(model)
    renamings = [rule for rule in conversions if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in conversions if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    groups: dict[str, WeightConverter] = {}
    for name in sorted(stored, key=dot_natural_key):
        target, pattern, rules = _rename(name, renamings, converters, model.base_model_prefix, expected)
        # A second tensor for the same place is left over, too.
        if target not in expected or (pattern is None and target in found.tensors):
            found.unexpected.append(name)
            continue
        found.rules.update(rules)
        if pattern is None:
            found.tensors[target] = stored[name]
        else:
            if target not in groups:
                groups[target] = copy.deepcopy(by_pattern[pattern])
            groups[target].add_tensor(target, name, pattern, stored[name])  # type: ignore[arg-type]
    for target, group in groups.items():
        found.unjoinable.update(_unjoinable(group))
        for name, tensor in _convert(group, target, model).items():
            if name in expected and name not in found.tensors:
                found.tensors[name] = tensor
            else:
                found.unexpected += sorted(tensor.origins, key=dot_natural_key)
    _name_the_renamed(found)
    find_faults(found, model, expected, stored)
    return found


def _rename(
    name: str, renamings: list[Any], converters: list[Any], prefix: str, expected: Mapping[str, Any]
) -> tuple[str, str | None, list[str]]:
    """A stored name in the model, the pattern of the converter that takes it, and the rules that changed it."""
    target, used = name, []
    for rule in renamings:
        before, (target, _) = target, rule.rename_source_key(target)
        if target != before:
            used.append(_rule_text(rule))
    target, pattern = apply_converters(target, converters)
    used += [_rule_text(rule) for rule in converters if pattern in rule.source_patterns]
    target, _ = rename_source_key(target, [], [], prefix, expected)  # type: ignore[arg-type]
    if target not in expected and name in expected:
        return name, None, []
    return target, pattern, used


def _rule_text(rule: Any) -> str:
    # Without what only keeps a pattern from matching elsewhere.
    source, target = (
        re.sub(r"\(\?[^)]*\)|[\\^]", "", " + ".join(patterns))
        for patterns in (rule.source_patterns, rule.target_patterns)
    )
    text = f"{source} -> {target}"
    operations = getattr(rule, "operations", ())
    return text + f" ({', '.join(type(operation).__name__ for operation in operations)})" * bool(operations)


def _unjoinable(group: WeightConverter) -> dict[str, torch.dtype]:
    """Tensors of a group whose dtype has none in common with the most frequent one; casts them to that."""
    collected: dict[str, list[Any]] = group.collected_tensors  # type: ignore[assignment]
    parts: list[Deferred] = [tensor for tensors in collected.values() for tensor in tensors]
    usual = Counter(tensor.dtype for tensor in parts).most_common(1)[0][0]
    if common_dtype(parts) is not None:
        return {}
    for pattern, tensors in collected.items():
        collected[pattern] = [tensor if tensor.dtype == usual else cast(tensor, usual) for tensor in tensors]
    return {name: tensor.dtype for tensor in parts if tensor.dtype != usual for name in tensor.origins}


def _convert(group: WeightConverter, target: str, model: Any) -> dict[str, Deferred]:
    try:
        converted = group.convert(target, model=model, config=model.config)
    # Parts of a fused tensor that are missing or do not fit together: the comparison names them.
    except (RuntimeError, IndexError, StopIteration):
        return {}
    return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in converted.items()}


def _name_the_renamed(found: Native) -> None:
    for target, tensor in found.tensors.items():
        for name in tensor.origins - {target}:
            found.renamed.setdefault(name, []).append(target)
    found.renamed = {name: found.renamed[name] for name in sorted(found.renamed, key=dot_natural_key)}
