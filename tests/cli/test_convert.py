"""`dllm-generate inspect` and `dllm-generate convert`."""

import json
import shutil

import pytest
import torch
from published_files import GOLDEN
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from dllm_generate.cli import app
from dllm_generate.cli.inspect import MOST_NAMES

LLADA2 = str(GOLDEN / "llada2_moe")


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})


@pytest.fixture
def holed(tmp_path):
    """A model without the experts of a layer."""
    folder = shutil.copytree(LLADA2, tmp_path / "holed")
    weights = load_file(folder / "model.safetensors")
    lost = [name for name in weights if name.startswith("model.layers.2.mlp.experts.")]
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1]
    kept = {name: tensor.clone() for name, tensor in weights.items() if name not in lost}
    save_file({**kept, "extra.weight": kept["model.norm.weight"].clone()}, folder / "model.safetensors")
    return folder, lost


def test_inspect_says_what_it_is():
    result = invoke("inspect", LLADA2)
    assert result.exit_code == 0, result.output
    for words in (
        *("llada2_moe, LLaDA2MoeModelLM", "published", "46,368 parameters in 82 tensors", "float32"),
        *("mask 63, eos 62, pad 60", "block_causal, blocks of 32", "quality", "query_key_value -> q_proj + k_proj"),
        "Complete: every tensor of the model is there.",
    ):
        assert words in result.stdout, words
    name = "model.layers.0.attention.dense.weight -> model.layers.0.self_attn.o_proj.weight"
    assert name not in result.stdout and name in invoke("inspect", LLADA2, "--all").stdout


def test_inspect_tells_what_is_missing_by_its_status(holed):
    folder, lost = holed
    result = invoke("inspect", folder)
    assert result.exit_code == 1 and "Not complete." in result.stdout
    for words in (f"Missing: {len(lost)}", f"and {len(lost) - MOST_NAMES} more (--all)", "Unexpected: 1", "[31], but"):
        assert words in result.stdout, words
    everything = invoke("inspect", folder, "--all")
    assert everything.exit_code == 1 and all(f"  {name}\n" in everything.stdout for name in lost)
    report = json.loads(invoke("inspect", folder, "--json").stdout)
    assert sorted(report["missing"]) == sorted(lost) and report["unexpected"] == ["extra.weight"]
    assert report["mismatched"] == {"model.norm.weight": [[31], [32]]} and "renamed" not in report
    assert "renamed" in json.loads(invoke("inspect", folder, "--json", "--all").stdout)


def test_inspect_names_the_three_options_and_adapters(tmp_path):
    folder = shutil.copytree(LLADA2, tmp_path / "other")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "model_type": "new", "architectures": ["NewLM"]}))
    result = invoke("inspect", folder)
    assert result.exit_code == 0 and "not checked" in result.stdout and "Complete" not in result.stdout
    assert all(f"`{option}`" in result.stdout for option in ("mask_token_id", "logits_shift", "attention"))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps({**values, "base_model_name_or_path": "some/base"}))
    assert invoke("inspect", adapter).exit_code == 1
    save_file({"lora_A.weight": torch.zeros(2, 3)}, adapter / "adapter_model.safetensors")
    result = invoke("inspect", adapter)
    assert result.exit_code == 0, result.output
    for words in ("LORA, rank 2, alpha 4", "some/base", "q_proj, v_proj", "6 parameters in 1 tensor"):
        assert words in result.stdout, words


def test_convert_there_and_back(tmp_path):
    fused, back = tmp_path / "fused", tmp_path / "back"
    result = invoke("convert", LLADA2, fused, "--max-shard-size", "50KB")
    assert result.exit_code == 0, result.output
    assert "llada2_moe: published -> native, 44 tensors, 5 files" in result.stderr and str(fused) in result.stderr
    result = invoke("convert", fused, back, "--to", "published", "--dtype", "bfloat16")
    assert result.exit_code == 0 and "native -> published, 82 tensors, 1 file\n" in result.stderr
    assert "bfloat16" in invoke("inspect", back).stdout
    assert invoke("convert", LLADA2, back).exit_code == 2
    assert invoke("convert", LLADA2, back, "--overwrite").exit_code == 0
    assert json.loads(invoke("inspect", back, "--json").stdout)["layout"] == "native"


def test_a_config_of_which_no_model_can_be_built_is_one_line_and_status_2(tmp_path):
    folder = shutil.copytree(LLADA2, tmp_path / "other")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "num_attention_heads": 0}))
    for result in (invoke("inspect", folder), invoke("convert", folder, tmp_path / "output")):
        assert result.exit_code == 2 and "config.json of" in result.stderr and "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "no such folder"), "'no such folder', but must be a local folder"),
        (("convert", "no such folder", "out"), "'no such folder', but must be a local folder"),
        (("convert", LLADA2, "out", "--to", "fused"), "`to` is 'fused'"),
        (("convert", LLADA2, "out", "--dtype", "int4"), "`dtype` is 'int4'"),
        (("convert", LLADA2, "out", "--max-shard-size", "5"), "`max_shard_size` is '5'"),
        (("convert", LLADA2, __file__), "not a file"),
    ],
)
def test_what_cannot_work_is_one_line_and_status_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
