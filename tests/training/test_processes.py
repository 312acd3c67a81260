"""Two processes give the gradients of one."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dllm_generate.training.recipe import Recipe
from dllm_generate.training.run import train

WORKER = Path(__file__).with_name("parallel_training.py")
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}


def run(*command):
    ran = subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.mark.parametrize("keys", [{}, {"lora": {"r": 2, "dropout": 0.5}, "objective": "block_diffusion"}])
def test_two_processes_equal_one(recipe, tmp_path, keys):
    Recipe.read(recipe(rows=8, parts=4, steps=2, max_grad_norm=1e9, **keys)).save(tmp_path / "recipe.yaml")
    runpy.run_path(str(WORKER))["main"](tmp_path / "recipe.yaml", str(tmp_path / "one"))
    # `accelerate launch --cpu` starts one process only where there is no MPI.
    run(*TWO, WORKER, tmp_path / "recipe.yaml", tmp_path / "two")
    saved = [torch.load(tmp_path / name / "gradients.pt") for name in ("one", "two")]
    (one_process, tokens, one), (two_processes, tokens_of_two, two) = saved
    assert (one_process, two_processes) == (1, 2)
    assert tokens == tokens_of_two and len(one) == len(two) == 2
    for first, second in zip(one, two, strict=True):
        assert first.keys() == second.keys() and first
        for name in first:
            torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)
    assert max(gradient.abs().max() for gradient in one[0].values()) > 1e-2


def test_processes_must_share_the_forwards(recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="`parts` is 2, but must be a multiple of 3, the number of processes"):
        train(recipe())
