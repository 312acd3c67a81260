"""How much of a checkpoint is in memory at once."""

import weakref

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dllm_generate import LLaDAMoEConfig, LLaDAMoEForMaskedDiffusion
from dllm_generate.checkpoints import convert_checkpoint
from dllm_generate.checkpoints.deferred import Deferred
from dllm_generate.checkpoints.files import WeightFiles

SHARD = 50_000


class Meter(TorchDispatchMode):
    """Counts the bytes of weights that are alive: of what was read, and of all that was made of it.

    A tensor that is read is a view of the mapped file, so not its storage counts, but the range that was asked for.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known = set()
        self._reading = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            real = isinstance(tensor, torch.Tensor) and not isinstance(tensor, Deferred)
            if real and tensor.device.type == "cpu" and not self._reading:
                storage = tensor.untyped_storage()
                self._note(storage, storage.nbytes())
        return result

    def metered(self, read):
        """The method that reads, under observation."""

        def reading(*args):
            self._reading = True
            tensor = read(*args)
            self._reading = False
            self._note(tensor.untyped_storage(), tensor.nbytes)
            return tensor

        return reading

    def _note(self, storage, size):
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            weakref.finalize(storage, self._forget, key, size)
            self.live += size
            self.peak = max(self.peak, self.live)

    def _forget(self, key, size):
        self._known.discard(key)
        self.live -= size


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model whose fused experts are far larger than a shard, in many shards of both layouts."""
    path = tmp_path_factory.mktemp("checkpoints")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 32}
    torch.manual_seed(0)
    model = LLaDAMoEForMaskedDiffusion(LLaDAMoEConfig(vocab_size=512, mask_token_id=511, **sizes, **experts))
    for layout in ("published", "native"):
        model.save_pretrained(path / layout, save_original_format=layout == "published", max_shard_size=SHARD)
    return path


def meter_of(folders, tmp_path, monkeypatch, to, **options):
    source, meter = folders / ("native" if to == "published" else "published"), Meter()
    with monkeypatch.context() as patch, meter:
        patch.setattr(WeightFiles, "read", meter.metered(WeightFiles.read))
        convert_checkpoint(source, tmp_path / to, to=to, max_shard_size=SHARD, **options)
    assert not meter.live
    return meter


def largest(folder):
    tensors = [tensor for file in folder.glob("*.safetensors") for tensor in load_file(file).values()]
    return max(t.nbytes for t in tensors), max(t.nbytes // len(t) for t in tensors), sum(t.nbytes for t in tensors)


@pytest.mark.parametrize("to", ["native", "published"])
def test_no_more_than_some_slabs_whatever_the_size_of_a_group(to, folders, tmp_path, monkeypatch):
    slab = 4096
    peak = meter_of(folders, tmp_path, monkeypatch, to, slab_bytes=slab, dtype="bfloat16").peak
    group, entry, whole = largest(folders / "native")
    assert (len(list((folders / "published").glob("*.safetensors")))) > 10 and group > 4 * SHARD and whole > 2 * group
    # What was asked for is a shard and a group. It is the largest entry of a fused tensor, an expert: read, joined and
    # cast.
    assert slab < peak <= 3 * max(slab, entry) < SHARD


@pytest.mark.parametrize("to", ["native", "published"])
def test_the_slab_bounds_it_and_the_meter_sees_it(to, folders, tmp_path, monkeypatch):
    group, _, _ = largest(folders / "native")
    whole = meter_of(folders, tmp_path / "whole", monkeypatch, to, slab_bytes=10**9).peak
    parts = meter_of(folders, tmp_path / "parts", monkeypatch, to, slab_bytes=64 * 1024).peak
    if to == "native":
        # All experts of a layer at once, and their sources.
        assert 2 * group <= whole <= 3 * group
    assert parts <= 3 * 64 * 1024


def test_a_conversion_reads_the_bytes_that_it_writes(folders, tmp_path, monkeypatch):
    """Experts are not read again for every expert that is written beside them."""
    read, count = WeightFiles.read, []

    def counting(self, *args):
        tensor = read(self, *args)
        count.append(tensor.nbytes)
        return tensor

    monkeypatch.setattr(WeightFiles, "read", counting)
    whole = largest(folders / "native")[2]
    convert_checkpoint(folders / "published", tmp_path / "native", to="native", slab_bytes=4096)
    assert sum(count) == whole
    count.clear()
    convert_checkpoint(folders / "native", tmp_path / "published", to="published")
    # The gate and up projections of an expert lie side by side and are read for each of the two.
    assert whole < sum(count) < 2 * whole
