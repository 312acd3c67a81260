"""Every short example runs on the bundled model."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["quickstart", "batch", "streaming", "infilling"])
def test_an_example_runs(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_merging_adds_what_a_fine_tuning_changed(tmp_path, monkeypatch):
    cards, output = EXAMPLES.parent / "model_cards", tmp_path / "merged"
    tiny, tuned = (str(cards / name) for name in ("dllm-tiny", "dllm-tiny-td"))
    monkeypatch.setattr(sys, "argv", ["merge", tiny, "--tuned", tuned, "--origin", tiny, "--output", str(output)])
    runpy.run_path(str(EXAMPLES / "merge.py"), run_name="__main__")
    merged, expected = (load_file(Path(folder) / "model.safetensors") for folder in (output, tuned))
    assert merged.keys() == expected.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, expected[name])
    assert (output / "tokenizer.json").is_file()
