"""Tensor and expert parallel runs on two processes, straight from the published layout."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

GOLDEN = Path(__file__).parents[1] / "golden" / "models"


def test_two_processes_equal_one(tmp_path):
    worker = Path(__file__).with_name("parallel_moe.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(
        [*launcher, str(worker), str(GOLDEN), str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    saved = sorted(tmp_path.iterdir())
    assert len(saved) == 4
    for folder in saved:
        written = load_file(folder / "model.safetensors")
        original = load_file(GOLDEN / folder.name.split("_tp_size")[0] / "model.safetensors")
        assert written.keys() == original.keys()
        assert all(torch.equal(written[name], original[name]) for name in original)
