"""Deferred tensors give the values of the operations that they stand for, and read no more than they have to."""

import pytest
import torch

from dllm_generate.checkpoints.deferred import Deferred, cast


class Source:
    """Tensors by name, and what was read of them."""

    def __init__(self, **tensors):
        self.tensors, self.reads = tensors, []

    def deferred(self, name):
        tensor = self.tensors[name]

        def rows(start, stop):
            self.reads.append((name, start, stop))
            return tensor[start:stop] if tensor.dim() else tensor

        return Deferred(tensor.shape, tensor.dtype, rows, frozenset([name]))


OPERATIONS = {
    "stack": lambda a, b: torch.stack([a, b, a]),
    "stack last": lambda a, b: torch.stack([a, b], -1),
    "cat": lambda a, b: torch.cat([a, b, a]),
    "cat rows": lambda a, b: torch.cat([a, b], 1),
    "cat last": lambda a, b: torch.cat([a, b], -1),
    "chunk": lambda a, b: torch.chunk(a, 3)[1],
    "uneven chunk": lambda a, b: torch.chunk(a, 4)[-1],
    "chunk columns": lambda a, b: torch.chunk(b, 2, dim=1)[1].contiguous(),
    "split": lambda a, b: torch.split(a, [1, 2, 3])[2],
    "split columns": lambda a, b: torch.split(a, [1, 1], dim=-1)[1],
    "squeeze": lambda a, b: torch.chunk(a, 6)[4].squeeze(0),
    "squeeze nothing": lambda a, b: a.squeeze(0),
    "squeeze another": lambda a, b: torch.chunk(a, 4, dim=1)[2].squeeze(1),
    "unknown": lambda a, b: (a.transpose(0, 1) * 2 + b.sum()).reshape(3, -1),
    "to a scalar": lambda a, b: a.sum(),
    "chain": lambda a, b: torch.cat([torch.stack([a, b]), torch.stack([b, a])], 1).chunk(2)[1].squeeze(0)[1:5],
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_values_and_every_range_of_them(operation):
    source = Source(a=torch.randn(6, 4, 2), b=torch.randn(6, 4, 2))
    expected = operation(*source.tensors.values())
    made = operation(source.deferred("a"), source.deferred("b"))
    assert made.shape == expected.shape and not source.reads
    assert torch.equal(made.read(), expected)
    for start in range(len(expected) if expected.dim() else 0):
        for stop in range(start + 1, len(expected) + 1):
            assert torch.equal(made.read(start, stop), expected[start:stop])


def test_only_what_is_asked_for_is_read():
    source = Source(**{name: torch.randn(6, 4) for name in "abcd"})
    a, b, c, d = map(source.deferred, "abcd")
    fused = torch.cat([torch.stack([a, b]), torch.stack([c, d])], 1)
    fused.read(1, 2)
    assert source.reads == [("b", 0, 6), ("d", 0, 6)]
    source.reads.clear()
    torch.cat([a, b, c]).read(5, 8)
    assert source.reads == [("a", 5, 6), ("b", 0, 2)]
    source.reads.clear()
    torch.split(a, [1, 5])[1].read(2, 4)
    assert source.reads == [("a", 3, 5)]
    assert fused.origins == set("abcd") and torch.split(a, 2)[0].origins == {"a"}


def test_scalars_dtypes_and_casts():
    source = Source(a=torch.tensor(3), b=torch.randn(4).bfloat16(), c=torch.randn(4))
    a, b, c = map(source.deferred, "abc")
    assert a.read() == 3 and a.shape == () and a.dtype == torch.int64
    joined = torch.cat([b, c])
    assert joined.dtype == torch.float32
    assert torch.equal(joined.read(2, 6), torch.cat([source.tensors["b"], source.tensors["c"]])[2:6])
    half = cast(c, torch.float16)
    assert half.dtype == torch.float16 and torch.equal(half.read(1, 3), source.tensors["c"][1:3].half())
