"""A family whose model class is transformers' own, and which has one layout."""

import json

import pytest
from gemma_kit import CANVAS, tiny_gemma
from models import EOS, PAD
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from dllm_generate.checkpoints import convert_checkpoint, inspect_checkpoint
from dllm_generate.cli import app


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma")
    tiny_gemma().save_pretrained(folder)
    return folder


def test_its_family_and_ids_are_told(saved):
    report = inspect_checkpoint(saved)
    assert (report.family, report.attention, report.block_length) == ("diffusion_gemma", "block_causal", CANVAS)
    assert report.token_ids == {"mask_token_id": None, "eos_token_id": EOS, "pad_token_id": PAD}
    assert (report.layout, report.complete, report.unexpected) == ("one", True, [])
    assert report.notes == [] and report.options_needed is None
    result = CliRunner().invoke(app, ["inspect", str(saved)], env={"COLUMNS": "160"})
    assert result.exit_code == 0 and "Complete" in result.stdout and "mask_token_id" not in result.stdout


def test_its_names_are_held_against_the_model(saved, tmp_path):
    weights = load_file(saved / "model.safetensors")
    lost = next(name for name in weights if "experts" in name)
    tensor = weights.pop(lost)
    save_file({**weights, "extra": tensor}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    report = inspect_checkpoint(tmp_path)
    # Encoder and decoder share it.
    twins = {".".join(name.split("layers")[1:]) for name in report.missing}
    assert (
        lost in report.missing
        and twins == {lost.split("layers")[1]}
        and report.unexpected == ["extra"]
        and not report.complete
    )


def test_there_is_nothing_to_convert(saved, tmp_path):
    with pytest.raises(ValueError, match="'diffusion_gemma', which has one layout only: there is nothing to convert"):
        convert_checkpoint(saved, tmp_path / "output")
    assert not list(tmp_path.iterdir())


def test_sizes_of_which_no_model_can_be_built(saved, tmp_path):
    content = json.loads((saved / "config.json").read_text())
    content["text_config"]["num_attention_heads"] = -1
    (tmp_path / "config.json").write_text(json.dumps(content))
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="^config.json of "):
        inspect_checkpoint(tmp_path)
