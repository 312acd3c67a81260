"""Tensors that are read when they are written: the operations between are remembered, and cut the reads to size."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Rows = Callable[[int, int], torch.Tensor]


class Deferred(torch.Tensor):
    """A tensor of known shape and dtype whose values are still in a file.

    Operations on it give further deferred tensors. Those of which checkpoint layouts are made (stacking, joining,
    splitting) read only the rows that are asked for; any other operation reads its inputs whole, once it is asked.

    Args:
        shape: of the tensor.
        dtype: of the tensor.
        rows: `rows(start, stop)` gives the values of a range of the first dimension `(stop - start, ...)`; of a tensor
            without dimensions, `rows(0, 1)` gives it whole `()`.
        origins: names of the stored tensors that it is made from.
    """

    # The operators are caught below; Python functions must reach them as they are.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    rows: Rows
    origins: frozenset[str]

    @staticmethod
    def __new__(cls, shape: Sequence[int], dtype: torch.dtype, rows: Rows, origins: frozenset[str]) -> "Deferred":
        made = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype)
        made.rows, made.origins = rows, origins
        return made

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Returns the values of a range of the first dimension; by default all."""
        return self.rows(start, (self.shape[0] if self.dim() else 1) if stop is None else stop)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        deferred = [leaf for leaf in tree_flatten((args, kwargs or {}))[0] if isinstance(leaf, cls)]
        if common_dtype(deferred) is None:
            raise ValueError(_cannot_be_joined(deferred))
        outputs, structure = tree_flatten(func(*tree_map(_outline, args), **tree_map(_outline, kwargs or {})))
        streamed = _STREAMED.get(func)
        rows = streamed(*args, **(kwargs or {})) if streamed else None
        if rows is None:
            rows = [_of_whole(func, args, kwargs or {}, k) for k in range(len(outputs))]
        origins = frozenset().union(*(leaf.origins for leaf in deferred))
        made = [cls(output.shape, output.dtype, own, origins) for output, own in zip(outputs, rows)]
        return tree_unflatten(made, structure)


def cast(tensor: Deferred, dtype: torch.dtype) -> Deferred:
    """The same values in another dtype, cast as they are read."""
    return Deferred(tensor.shape, dtype, lambda i, j: tensor.read(i, j).to(dtype), tensor.origins)


def common_dtype(tensors: Iterable[Deferred]) -> torch.dtype | None:
    """The dtype of a tensor joined of these; None where there is none, such as for float8 beside any other."""
    try:
        return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    except RuntimeError:
        return None


def _cannot_be_joined(tensors: Sequence[Deferred]) -> str:
    some = {str(tensor.dtype).removeprefix("torch."): min(tensor.origins) for tensor in tensors}
    told = " and ".join(f"{dtype} ({name})" for dtype, name in some.items())
    return f"Weights cannot be joined that are {told}."


def _outline(leaf: Any) -> Any:
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") if isinstance(leaf, Deferred) else leaf


def _of_whole(func: Any, args: Any, kwargs: Any, k: int) -> Rows:
    """Output `k` of an operation of which nothing is known."""

    def rows(start: int, stop: int) -> torch.Tensor:
        inputs = tree_map(lambda leaf: leaf.read().contiguous() if isinstance(leaf, Deferred) else leaf, (args, kwargs))
        whole = tree_flatten(func(*inputs[0], **inputs[1]))[0][k]
        return whole[start:stop] if whole.dim() else whole

    return rows


def _stack(tensors: Sequence[Deferred], dim: int = 0) -> list[Rows] | None:
    if dim != 0:
        return None
    return [lambda i, j: torch.stack([tensor.read() for tensor in tensors[i:j]])]


def _cat(tensors: Sequence[Deferred], dim: int = 0) -> list[Rows]:
    dim = dim % tensors[0].dim()
    if dim:
        return [lambda i, j: torch.cat([tensor.read(i, j) for tensor in tensors], dim)]

    def rows(start: int, stop: int) -> torch.Tensor:
        parts, first = [], 0
        for tensor in tensors:
            i, j = max(start - first, 0), min(stop - first, len(tensor))
            if i < j:
                parts.append(tensor.read(i, j))
            first += len(tensor)
        return torch.cat(parts)

    return [rows]


def _split_with_sizes(tensor: Deferred, sizes: Sequence[int], dim: int = 0) -> list[Rows]:
    dim = dim % tensor.dim()

    def part(first: int, size: int) -> Rows:
        if dim == 0:
            return lambda i, j: tensor.read(first + i, first + j)
        return lambda i, j: tensor.read(i, j).narrow(dim, first, size)

    return [part(sum(sizes[:k]), size) for k, size in enumerate(sizes)]


def _split(tensor: Deferred, size: int, dim: int = 0) -> list[Rows]:
    whole = tensor.shape[dim]
    return _split_with_sizes(tensor, [min(size, whole - first) for first in range(0, whole, size)], dim)


def _squeeze(tensor: Deferred, dim: int) -> list[Rows] | None:
    # Any other dimension leaves the first one as it is, but may be no dimension of length 1 at all.
    if dim != 0 or tensor.shape[0] != 1:
        return None
    return [lambda i, j: tensor.read()[0][i:j] if tensor.dim() > 1 else tensor.read()[0]]


_ATEN = torch.ops.aten
_STREAMED: dict[Any, Callable[..., list[Rows] | None]] = {
    _ATEN.stack.default: _stack,
    _ATEN.cat.default: _cat,
    _ATEN.split_with_sizes.default: _split_with_sizes,
    _ATEN.split.Tensor: _split,
    _ATEN.squeeze.dim: _squeeze,
}
