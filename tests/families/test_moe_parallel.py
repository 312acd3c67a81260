"""Tensor and expert parallel runs on two processes, straight from the published layout."""

from pathlib import Path

import torch
from processes import on_two_processes
from safetensors.torch import load_file

GOLDEN = Path(__file__).parents[1] / "golden" / "models"


def test_two_processes_equal_one(tmp_path):
    on_two_processes(Path(__file__).with_name("parallel_moe.py"), GOLDEN, tmp_path)
    saved = sorted(tmp_path.iterdir())
    assert len(saved) == 4
    for folder in saved:
        written = load_file(folder / "model.safetensors")
        original = load_file(GOLDEN / folder.name.split("_tp_size")[0] / "model.safetensors")
        assert written.keys() == original.keys()
        assert all(torch.equal(written[name], original[name]) for name in original)
