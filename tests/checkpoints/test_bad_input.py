"""Folders that cannot be converted, and that nothing half-written stays."""

import json
import shutil

import pytest
import torch
from published_files import GOLDEN
from safetensors.torch import load_file, save_file

from dllm_generate.checkpoints import convert_checkpoint, inspect_checkpoint
from dllm_generate.checkpoints.files import WeightFiles

SOURCE = GOLDEN / "llada_moe"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(SOURCE, tmp_path / "source")


@pytest.fixture
def shards(tmp_path):
    convert_checkpoint(SOURCE, tmp_path / "shards", to="published", max_shard_size="20KB")
    return tmp_path / "shards"


def edit_config(folder, **values):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **values}))


def cut(path, length):
    path.write_bytes(path.read_bytes()[:length])


def index(folder, file):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": file}}))


def without_weights(folder, name=None):
    (folder / "model.safetensors").unlink()
    if name is not None:
        torch.save({}, folder / name)


def one_more(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "extra": torch.zeros(2)}, folder / "model.safetensors")


UNREADABLE = {
    "no folder": (shutil.rmtree, FileNotFoundError, "must be a local folder"),
    "no config": (lambda f: (f / "config.json").unlink(), FileNotFoundError, "There is no config.json"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), ValueError, "config.json' is no valid JSON"),
    "no model type": (lambda f: edit_config(f, model_type=None), ValueError, "`model_type` None"),
    "another router": (lambda f: edit_config(f, clip_qkv=1.0), ValueError, "`clip_qkv`=1.0"),
    "a size in words": (
        lambda f: edit_config(f, hidden_size="much"),
        ValueError,
        "^config.json of .*hidden_size",
    ),
    "layers without end": (
        lambda f: edit_config(f, num_hidden_layers=10**9),
        ValueError,
        "`num_hidden_layers` is 1000000000, but must be at most 1000",
    ),
    "no heads": (lambda f: edit_config(f, num_attention_heads=0), ValueError, "^config.json of .*ZeroDivisionError"),
    "less than no heads": (lambda f: edit_config(f, num_attention_heads=-1), ValueError, "^config.json of .*negative"),
    "a base in words": (lambda f: edit_config(f, rope_theta="x"), ValueError, "^config.json of .*'str'"),
    "a class that is a number": (
        lambda f: edit_config(f, architectures=3.0),
        ValueError,
        "`architectures` is 3.0, but",
    ),
    "a class of an unknown type that is a number": (
        lambda f: edit_config(f, model_type="new", architectures=[3]),
        ValueError,
        r"^config.json of .*`architectures` is \[3\], but",
    ),
    "a deep config": (lambda f: (f / "config.json").write_text("[" * 100_000), ValueError, "config.json' is no valid"),
    "an index with a number": (lambda f: index(f, 1), ValueError, "file of 'lm_head.weight' is 1, but must be a name"),
    "an index with a list": (lambda f: index(f, ["a.safetensors"]), ValueError, r"index.json of .*\['a.safetensors'\]"),
    "no weights": (without_weights, FileNotFoundError, "no weights"),
    "a pickle": (lambda f: without_weights(f, "pytorch_model.bin"), ValueError, "must be safetensors"),
    "no index": (
        lambda f: (f / "model.safetensors").rename(f / "model-00001-of-00002.safetensors"),
        ValueError,
        "which shards belong",
    ),
    "cut off": (lambda f: cut(f / "model.safetensors", 100_000), ValueError, "model.safetensors' is damaged"),
    "cut in the header": (lambda f: cut(f / "model.safetensors", 90), ValueError, "is damaged"),
    "empty": (lambda f: cut(f / "model.safetensors", 0), ValueError, "is damaged"),
}
INCONVERTIBLE = {
    "unknown family": (lambda f: edit_config(f, model_type="llama", architectures=[]), ValueError, "no supported fam"),
    "unknown type": (lambda f: edit_config(f, model_type="new", architectures=["New"]), ValueError, "no supported fam"),
    "quantized": (lambda f: edit_config(f, quantization_config={"quant_method": "gptq"}), ValueError, "quantized"),
    "left over": (one_more, ValueError, r"1 unexpected \(extra\)"),
    "too few experts": (lambda f: edit_config(f, num_experts=9), ValueError, "missing .*experts.8.*of another shape"),
    "an adapter": (lambda f: (f / "config.json").rename(f / "adapter_config.json"), ValueError, "an adapter"),
}


@pytest.mark.parametrize("case", [*UNREADABLE, *INCONVERTIBLE])
def test_a_folder_that_cannot_be_converted(case, folder, tmp_path):
    damage, error, message = {**UNREADABLE, **INCONVERTIBLE}[case]
    damage(folder)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(error, match=message):
        convert_checkpoint(folder, tmp_path / "a" / "output")
    if case in UNREADABLE:
        with pytest.raises(error, match=message):
            inspect_checkpoint(folder)
    assert set(tmp_path.rglob("*")) == before


def test_an_adapter_with_targets_that_are_no_names(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"target_modules": 5}')
    with pytest.raises(ValueError, match="adapter_config.json of .*`target_modules` is 5, but must be"):
        inspect_checkpoint(tmp_path)


@pytest.mark.parametrize("call", [inspect_checkpoint, lambda folder: convert_checkpoint(folder, folder / ".." / "out")])
def test_half_a_set_of_shards(call, shards):
    lost = sorted(shards.glob("model-*.safetensors"))[1::2]
    for path in lost:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{len(lost)} of .* shards .* are missing .*{lost[-1].name}"):
        call(shards)
    (shards / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="no `weight_map`"):
        call(shards)
    assert not (shards / ".." / "out").exists()


def test_a_tensor_in_two_shards(shards):
    first, second = sorted(shards.glob("model-*.safetensors"))[:2]
    save_file({**load_file(first), **load_file(second)}, second)
    with pytest.raises(ValueError, match=f"both in '{first.name}' and in '{second.name}'"):
        inspect_checkpoint(shards)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"to": "fused"}, "`to` is 'fused', but must be one of native, published"),
        ({"dtype": "int8"}, "`dtype` is 'int8', but must be one of float32"),
        ({"max_shard_size": "much"}, "`max_shard_size` is 'much'"),
        ({"max_shard_size": 0}, "`max_shard_size` is 0"),
        ({"slab_bytes": 0}, "`slab_bytes` is 0"),
        ({"slab_bytes": "x"}, "`slab_bytes` is 'x'"),
    ],
)
def test_options_with_other_values(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(SOURCE, tmp_path / "output", **options)
    assert not list(tmp_path.iterdir())


def test_outputs_that_are_refused(folder, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    cases = ((folder, "another folder than the input"), (tmp_path / "full", "unless `overwrite`"))
    with pytest.raises(ValueError, match="`output` is None, but must be the path"):
        convert_checkpoint(folder, None)
    with pytest.raises(ValueError, match="`folder` is None, but must be the path"):
        inspect_checkpoint(None)
    for output, message in (*cases, (tmp_path / "full" / "notes.txt", "not a file")):
        with pytest.raises(ValueError, match=f"`output` is .*{message}"):
            convert_checkpoint(folder, output)
    with pytest.raises(ValueError, match="another folder than the input"):
        convert_checkpoint(folder, folder / ".." / folder.name, overwrite=True)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_overwriting_leaves_no_weights_of_the_earlier_model(shards, tmp_path):
    (shards / "notes.txt").write_text("mine")
    convert_checkpoint(SOURCE, shards, overwrite=True)
    assert [path.name for path in shards.glob("model*")] == ["model.safetensors"]
    assert (shards / "notes.txt").read_text() == "mine" and inspect_checkpoint(shards).layout == "native"


def test_a_failure_on_the_way_leaves_all_as_it_was(shards, tmp_path, monkeypatch):
    read, reads = WeightFiles.read, []

    def failing(self, *args):
        reads.append(args)
        if len(reads) == 30:
            raise OSError("the disk is gone")
        return read(self, *args)

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(WeightFiles, "read", failing)
    for output in (tmp_path / "a" / "output", shards):
        reads.clear()
        with pytest.raises(OSError, match="the disk is gone"):
            convert_checkpoint(SOURCE, output, max_shard_size="20KB", overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "a").exists()


def test_a_full_disk_is_told_before(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(OSError, match="the weights take"):
        convert_checkpoint(SOURCE, tmp_path / "output")
    assert not list(tmp_path.iterdir())
