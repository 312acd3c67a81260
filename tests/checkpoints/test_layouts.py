"""Both layouts of every family, held against what transformers loads and saves."""

import json

import pytest
import torch
from published_files import GOLDEN
from safetensors.torch import load_file, save_file
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

from dllm_generate.checkpoints import convert_checkpoint, inspect_checkpoint
from dllm_generate.checkpoints.files import WeightFiles, weight_files
from dllm_generate.checkpoints.writer import write_safetensors
from dllm_generate.families.base import _REGISTRY
from dllm_generate.families.sdar_moe import SDARMoeConfig, SDARMoeForCausalLM

FOLDERS = [*sorted(path.parent.name for path in GOLDEN.glob("*/config.json")), "sdar_moe"]
# Dense families of Qwen layers, whose published names are those of the layers.
SAME_NAMES = ("dream", "fast_dllm_v2_qwen", "sdar")
every_family = pytest.mark.parametrize("name", FOLDERS)


@pytest.fixture(scope="module")
def sdar_moe(tmp_path_factory):
    """Of this family there is no stored checkpoint."""
    folder = tmp_path_factory.mktemp("sdar_moe")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [0]}
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    torch.manual_seed(0)
    SDARMoeForCausalLM(SDARMoeConfig(**sizes, **heads, **experts, mask_token_id=63)).save_pretrained(folder)
    return folder


@pytest.fixture
def source(name, sdar_moe):
    """A published folder of a family."""
    return sdar_moe if name == "sdar_moe" else GOLDEN / name


def test_no_native_family_is_left_out(sdar_moe):
    ours = [entry for entry in _REGISTRY.values() if entry.config_class.__module__.startswith("dllm_generate.")]
    families = {entry.family.name for entry in ours if entry.config_class in MODEL_FOR_CAUSAL_LM_MAPPING}
    folders = [sdar_moe, *(GOLDEN / name for name in FOLDERS[:-1])]
    assert families == {inspect_checkpoint(folder).family for folder in folders}


def stored(folder):
    """All tensors of a folder, of one file or of shards."""
    return {name: tensor for file in weight_files(folder) for name, tensor in load_file(folder / file).items()}


def assert_same_weights(folder, other):
    found, expected = stored(folder), stored(other)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def config(folder):
    return json.loads((folder / "config.json").read_text())


def load(folder, **kwargs):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **kwargs)
    assert not any(info.values())
    return model


def logits(folder):
    with torch.no_grad():
        return load(folder)(torch.arange(24)[None]).logits


@every_family
def test_native_is_what_save_pretrained_writes(name, source, tmp_path):
    made = convert_checkpoint(source, tmp_path / "native")
    load(source).save_pretrained(tmp_path / "saved", save_original_format=False)
    assert_same_weights(tmp_path / "native", tmp_path / "saved")
    for file in ("config.json", "generation_config.json"):
        texts = [(tmp_path / folder / file).read_text() for folder in ("native", "saved")]
        ours, theirs = map(json.loads, texts)
        # transformers notes the dtype that it found in the weights.
        assert ours == {key: value for key, value in theirs.items() if key != "dtype" or "dtype" in ours}
    assert made.files == ("model.safetensors",) and made.layout == "native"
    assert made.source_layout == ("one" if name in SAME_NAMES else "published")
    assert inspect_checkpoint(tmp_path / "native").layout == ("one" if name in SAME_NAMES else "native")
    assert torch.equal(logits(tmp_path / "native"), logits(source))


@every_family
def test_a_round_trip_over_small_shards_gives_the_published_files(source, tmp_path):
    one, two, three, back = (tmp_path / folder for folder in ("one", "two", "three", "back"))
    # Shards so small that fused experts and their sources lie in many of them.
    convert_checkpoint(source, one, to="published", max_shard_size="3KB", slab_bytes=700)
    convert_checkpoint(one, two, to="native", max_shard_size="20KB", slab_bytes=1000)
    convert_checkpoint(two, three, to="native", max_shard_size=9000)
    convert_checkpoint(three, back, to="published")
    for folder in (one, back):
        assert_same_weights(folder, source)
        published = config(source)
        assert {key: config(folder).get(key) for key in published} == published
    assert_same_weights(two, three)
    assert len(weight_files(one)) > len(weight_files(two)) > 1
    sizes = [sum(t.nbytes for t in load_file(two / file).values()) for file in weight_files(two)]
    largest = max(tensor.nbytes for tensor in stored(two).values())
    assert max(sizes) <= max(20_000, largest)
    for folder in (one, two, back):
        assert torch.equal(logits(folder), logits(source))


@every_family
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_is_that_of_loading_in_it(source, dtype, tmp_path):
    model = load(source, dtype=dtype)
    for layout, original in (("native", False), ("published", True)):
        saved, made = tmp_path / f"saved-{layout}", tmp_path / layout
        model.save_pretrained(saved, save_original_format=original)
        convert_checkpoint(source, made, to=layout, dtype=dtype)
        assert_same_weights(made, saved)
        assert config(made) == config(saved) and config(made)["dtype"] == dtype


def test_files_are_laid_out_as_safetensors_does(tmp_path):
    """The same but for blanks behind the header, with tensors of several dtypes and an odd number of bytes."""
    tensors = {
        "a": torch.arange(3, dtype=torch.bfloat16),
        "b": torch.randn(5, 3),
        "c": torch.tensor(2.5),
        "d": torch.empty(0, 4),
        "é": torch.tensor([True, False, True]),
        "f": torch.arange(6).view(2, 3),
    }
    save_file(tensors, tmp_path / "one.safetensors", metadata={"format": "pt"})
    with WeightFiles(tmp_path, ["one.safetensors"]) as weights:
        write_safetensors(tmp_path / "two.safetensors", weights.tensors, slab_bytes=8)
    ours, theirs = (load_file(tmp_path / f"{name}.safetensors") for name in ("two", "one"))
    assert all(torch.equal(ours[name], theirs[name]) for name in tensors) and ours.keys() == tensors.keys()
    first, second = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("two", "one"))
    starts = [8 + int.from_bytes(data[:8], "little") for data in (first, second)]
    assert first[starts[0] :] == second[starts[1] :]
    assert json.loads(first[8 : starts[0]]) == json.loads(second[8 : starts[1]])
    assert starts[0] % 64 == 0
