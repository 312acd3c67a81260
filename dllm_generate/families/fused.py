"""Published projections that are one matrix, and several in transformers' layers."""

from typing import Any

import torch
from transformers.core_model_loading import Split
from transformers.distributed.utils import is_dtensor


class SplitRows(Split):
    """transformers' `Split` along the first dimension, which tensor parallel runs can use too.

    They load a slice of the fused matrix per process, as if it were its first part: rows of other heads, and of the
    wrong parts. Here the slices are put together again, one matrix at a time, before each part is cut as its own
    parameter says.
    """

    def __init__(self) -> None:
        super().__init__(dim=0)

    @torch.no_grad()
    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        full_layer_name: str,
        model: Any,
        **kwargs: Any,
    ) -> dict[str, torch.Tensor]:
        """Returns the parts by target; in a tensor parallel run, this process's slices of them."""
        names = {target: full_layer_name.replace(target_patterns[0], target) for target in target_patterns}
        parts = {target: model.get_parameter(name) for target, name in names.items()}
        first = parts[target_patterns[0]]
        if not is_dtensor(first):
            plain: Any = super()
            return plain.convert(input_dict, source_patterns, target_patterns, full_layer_name, model, **kwargs)
        from torch.distributed.tensor import DTensor
        from transformers.distributed.sharding_utils import DtensorShardOperation

        (slices,) = input_dict.values()
        local = slices[0] if isinstance(slices, list) else slices
        sizes = [part.shape[0] for part in parts.values()]
        whole = torch.empty(sum(sizes), *first.shape[1:], device="meta")
        fused = DTensor.from_local(
            local.contiguous(),
            first.device_mesh,
            first.placements,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        ).full_tensor()
        cut = zip(parts.items(), fused.split(sizes))
        return {target: DtensorShardOperation(part).shard_tensor(rows) for (target, part), rows in cut}
