"""Writes safetensors files of deferred tensors, a slab at a time."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from transformers.modeling_utils import str_to_torch_dtype

from .deferred import Deferred

SLAB_BYTES = 64 * 2**20
# Loaded weights lie in memory as in the file, and some products of matrices give other last bits, more slowly, when an
# operand is not aligned to a cache line.
ALIGNMENT = 64
_NAMES = {dtype: name for name, dtype in str_to_torch_dtype.items()}


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Deferred],
    *,
    slab_bytes: int = SLAB_BYTES,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Writes a file as `safetensors.torch.save_file` would, of tensors that are never whole in memory.

    Args:
        path: of the file.
        tensors: by name.
        slab_bytes: how much is read and written at once; at least one entry of the first dimension.
        progress: is told the number of bytes of every slab.

    Raises:
        RuntimeError: if a tensor turns out to have another size than it said.
    """
    # Wide types first, as safetensors does, so that all are aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor, first = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            _write(file, tensors[name], slab_bytes, progress)
        if file.tell() != 8 + len(text) + end:
            raise RuntimeError(f"{path.name} has {file.tell()} bytes, but should have {8 + len(text) + end}.")


def _write(file: BinaryIO, tensor: Deferred, slab_bytes: int, progress: Callable[[int], object] | None) -> None:
    length = tensor.shape[0] if tensor.dim() else 1
    step = max(1, slab_bytes // max(1, tensor.nbytes // max(1, length)))
    for first in range(0, length, step):
        slab = tensor.read(first, min(first + step, length)).to(tensor.dtype)
        if slab.numel():
            written = file.write(slab.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            if progress is not None:
                progress(written)
