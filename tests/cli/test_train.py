"""`dllm-generate train`."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from dllm_generate.cli import app


@pytest.fixture
def recipe(folder, tmp_path):
    """A recipe of two steps on the saved model."""
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": "d"}\n')
    values = {"output": str(tmp_path / "run"), "model": folder, "data": str(chats), "steps": 2, "rows": 2, "parts": 1}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**values, "max_length": 64, "save_every": 1}))
    return str(path)


def invoke(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def test_train_set_output_resume(recipe, tmp_path):
    result = invoke(recipe, "--set", "lora.r=2", "--set", "learning-rate=1e-3", "--output", tmp_path / "other")
    assert result.exit_code == 0, result.output
    assert "loss" in result.stderr and f"Written: {tmp_path / 'other' / 'adapter'}" in result.stderr
    assert result.stdout == "" and not (tmp_path / "run").exists()
    saved = yaml.safe_load((tmp_path / "other" / "recipe.yaml").read_text())
    assert (saved["lora"]["r"], saved["learning_rate"], saved["output"]) == (2, 1e-3, str(tmp_path / "other"))
    assert len((tmp_path / "other" / "metrics.jsonl").read_text().splitlines()) == 1
    result = invoke(tmp_path / "other" / "recipe.yaml")
    assert result.exit_code == 2 and "which holds checkpoints, adapter, recipe.yaml" in result.stderr
    assert invoke(tmp_path / "other" / "recipe.yaml", "--resume").exit_code == 0


def test_the_trained_model_answers(recipe, tmp_path):
    assert invoke(recipe).exit_code == 0
    options = ["run", "--model", str(tmp_path / "run" / "final"), "--max-new-tokens", "4", "--json", "a"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0 and json.loads(result.stdout)["forwards"] >= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["step=2"], "has the key 'step' with the value 2"),
        (["steps=0"], "`steps` is 0, but must be an int of at least 1."),
        (["objective=nothing"], "`objective` is 'nothing'"),
        (["model=./nowhere"], "There is no folder 'nowhere'."),
        (["data=nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_errors_are_a_line(recipe, changes, message):
    result = invoke(recipe, *(part for change in changes for part in ("--set", change)))
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_a_recipe_that_is_not_there():
    result = invoke("nowhere.yaml")
    assert result.exit_code == 2 and "nowhere.yaml" in result.stderr
