"""Configs, tokenizer and other files that go with converted weights."""

import json
import shutil

import pytest
from published_files import GOLDEN
from transformers import AutoModelForCausalLM, AutoTokenizer

from dllm_generate import DiffusionGenerationConfig, LLaDA2MoeForMaskedDiffusion
from dllm_generate.checkpoints import convert_checkpoint

AUTO_MAP = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XModelLM"}


@pytest.fixture
def source(tmp_path, tokenizer):
    """A published folder with all that may lie beside weights."""
    folder = shutil.copytree(GOLDEN / "llada2_moe", tmp_path / "source")
    tokenizer.save_pretrained(folder)
    DiffusionGenerationConfig(decoder="threshold", threshold=0.7).save_pretrained(folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "auto_map": AUTO_MAP}))
    for name in ("README.md", "modeling_x.py", ".hidden", "pytorch_model.bin", "model.gguf"):
        (folder / name).write_text(name)
    for name in ("custom_generate", "figures"):
        (folder / name).mkdir()
        (folder / name / "generate.py").write_text("def generate(): ...")
    return folder


@pytest.mark.parametrize("to", ["native", "published"])
def test_what_goes_along(to, source, tmp_path, tokenizer):
    output = tmp_path / "output"
    convert_checkpoint(source, output, to=to)
    names = {path.name for path in output.iterdir()}
    copied = {"README.md", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "custom_generate"}
    assert copied <= names and not names & {".hidden", "pytorch_model.bin", "model.gguf", "figures"}
    for name in copied - {"custom_generate"}:
        assert (output / name).read_bytes() == (source / name).read_bytes()
    assert (output / "custom_generate" / "generate.py").is_file()
    # The published code would load native names without an error, and leave the experts random.
    assert ("modeling_x.py" in names) == (to == "published")
    assert json.loads((output / "config.json").read_text()).get("auto_map") == (AUTO_MAP if to == "published" else None)
    assert AutoTokenizer.from_pretrained(output).get_vocab() == tokenizer.get_vocab()
    model = AutoModelForCausalLM.from_pretrained(output, trust_remote_code=False)
    assert type(model) is LLaDA2MoeForMaskedDiffusion
    assert (model.generation_config.decoder, model.generation_config.threshold) == ("threshold", 0.7)


def test_overwriting_replaces_a_folder_of_code(source, tmp_path):
    convert_checkpoint(source, tmp_path / "output")
    (tmp_path / "output" / "custom_generate" / "old.py").write_text("")
    convert_checkpoint(source, tmp_path / "output", overwrite=True)
    assert [path.name for path in (tmp_path / "output" / "custom_generate").iterdir()] == ["generate.py"]


@pytest.mark.parametrize("given", [True, False])
def test_sampling_values_of_the_model_config_are_kept(given, tmp_path):
    source, output = tmp_path / "source", tmp_path / "output"
    shutil.copytree(GOLDEN / "sdar", source)
    content = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**content, "temperature": 0.7, "do_sample": True}))
    if given:
        DiffusionGenerationConfig(threshold=0.6).save_pretrained(source)
    convert_checkpoint(source, output)
    assert "temperature" not in json.loads((output / "config.json").read_text())
    config = AutoModelForCausalLM.from_pretrained(output).generation_config
    assert (config.temperature, config.do_sample, config.threshold) == (0.7, True, 0.6 if given else None)
    with pytest.warns(UserWarning, match="holds sampling values"):
        loaded = AutoModelForCausalLM.from_pretrained(source).generation_config
    assert config.to_dict() == {**loaded.to_dict(), "transformers_version": config.transformers_version}
