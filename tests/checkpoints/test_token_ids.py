"""Ids that are none, and side files that cannot be read."""

import json
import shutil

import pytest
from published_files import GOLDEN

from dllm_generate.checkpoints import convert_checkpoint, inspect_checkpoint


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(GOLDEN / "llada_moe", tmp_path / "source")


def edit_config(folder, **values):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **values}))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("generation_config.json", "{", "' is no valid JSON"),
        ("generation_config.json", "[]", "' holds no JSON object"),
        ("generation_config.json", '{"mask_token_id": "x"}', " of .*`mask_token_id` is 'x', but must be an int"),
        ("generation_config.json", '{"mask_token_id": [1]}', r" of .*`mask_token_id` is \[1\], but must be an int"),
        ("generation_config.json", '{"eos_token_id": [1, "x"]}', r" of .*`eos_token_id` is \[1, 'x'\].* list of ints"),
        ("generation_config.json", '{"pad_token_id": true}', " of .*`pad_token_id` is True, but must be an int"),
        ("tokenizer_config.json", "[]", "' holds no JSON object"),
        ("tokenizer.json", "{", "' is no valid JSON"),
    ],
)
def test_side_files_that_are_refused(name, text, message, folder, tmp_path):
    (folder / name).write_text(text)
    for call in (inspect_checkpoint, lambda folder: convert_checkpoint(folder, tmp_path / "output")):
        with pytest.raises(ValueError, match=name + message):
            call(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_ids_of_an_unknown_model_that_are_none(folder):
    edit_config(folder, model_type="new", architectures=["New"], vocab_size="many")
    assert inspect_checkpoint(folder).token_ids["mask_token_id"] is not None
    edit_config(folder, mask_token_id="x")
    with pytest.raises(ValueError, match="^config.json of .*`mask_token_id` is 'x', but must be an int"):
        inspect_checkpoint(folder)


def test_a_tokenizer_that_cannot_be_loaded_names_no_mask(folder):
    (folder / "tokenizer.json").write_text('{"model": {}}')
    edit_config(folder, mask_token_id=None)
    report = inspect_checkpoint(folder)
    assert report.token_ids["mask_token_id"] is None and report.notes == [
        "No mask token: give `mask_token_id` to `generate`."
    ]
