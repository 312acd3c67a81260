"""Tensors that would have to be joined, but whose dtypes have none in common."""

import shutil

import pytest
import torch
from published_files import GOLDEN
from safetensors.torch import load_file, save_file

from dllm_generate.checkpoints import convert_checkpoint, inspect_checkpoint


def with_float8(folder, *experts):
    """A folder in which a projection of these experts of the first layer with experts is in float8."""
    weights = load_file(folder / "model.safetensors")
    names = [next(name for name in weights if f"experts.{expert}.up_proj" in name) for expert in experts]
    lower = {name: weights[name].to(torch.float8_e4m3fn) for name in names}
    save_file({**weights, **lower}, folder / "model.safetensors")
    return names


@pytest.mark.parametrize("source", ["llada_moe", "llada2_moe"])
@pytest.mark.parametrize("experts", [(6,), (0, 6)])
def test_experts_whose_dtypes_cannot_be_joined_are_told(source, experts, tmp_path):
    folder = shutil.copytree(GOLDEN / source, tmp_path / "source")
    names = with_float8(folder, *experts)
    report = inspect_checkpoint(folder)
    # from_pretrained casts every tensor before it joins them.
    assert report.complete and report.layout == "published" and not report.unexpected
    assert any("cannot be joined" in note and all(name in note for name in names) for note in report.notes)
    with pytest.raises(ValueError, match=f"{len(experts)} of a dtype that cannot be joined .{names[0]}"):
        convert_checkpoint(folder, tmp_path / "output")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_native_parts_whose_dtypes_cannot_be_joined(tmp_path):
    convert_checkpoint(GOLDEN / "llada2_moe", tmp_path / "native")
    weights, name = load_file(tmp_path / "native" / "model.safetensors"), "model.layers.0.self_attn.k_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    save_file(weights, tmp_path / "native" / "model.safetensors")
    with pytest.raises(ValueError, match=f"cannot be joined that are .*float8_e4m3fn .{name}"):
        convert_checkpoint(tmp_path / "native", tmp_path / "published", to="published")
    assert [path.name for path in tmp_path.iterdir()] == ["native"]
