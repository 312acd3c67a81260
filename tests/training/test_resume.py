"""A run that is killed and resumed is the run that was not."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dllm_generate.training.checkpoints import find_checkpoint
from dllm_generate.training.recipe import Recipe
from dllm_generate.training.run import train

# Noise of two kinds, data in more than one epoch, dropout, both optimizers.
RUNS = {
    "all weights": {"optimizer": "muon", "objective": [{"name": "masked_diffusion"}, {"name": "block_diffusion"}]},
    "adapters": {"lora": {"r": 2, "dropout": 0.3}, "gradient_checkpointing": True},
}


def results(training):
    (folder,) = training.written
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def run_and_kill(recipe, file, step):
    """Runs the command in a process of its own, and kills it once the checkpoint of `step` is whole."""
    Recipe.read(recipe).save(file)
    command = [sys.executable, "-m", "dllm_generate.cli", "train", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    state, deadline = Path(recipe["output"]) / f"checkpoint-{step}" / "trainer_state.json", time.monotonic() + 120
    while not state.is_file():
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read().decode()[-3000:]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("keys", RUNS.values(), ids=RUNS)
def test_killed_and_resumed_equals_unbroken(recipe, tmp_path, keys):
    values = recipe(steps=24, save_every=3, keep=20, warmup=2, **keys)
    run_and_kill(values, tmp_path / "recipe.yaml", 6)
    run = Path(values["output"])
    assert not (run / "final").exists() and not (run / "adapter").exists()
    resumed = train(values, resume=True)
    unbroken = train(values, output=str(tmp_path / "unbroken"))
    one, other = results(resumed), results(unbroken)
    assert one.keys() == other.keys() and one
    assert all(torch.equal(one[name], other[name]) for name in one)
    told = [[{k: v for k, v in line.items() if k != "seconds"} for line in t.metrics] for t in (resumed, unbroken)]
    assert told[0] == told[1] and [line["step"] for line in told[0]] == list(range(1, 25))
    seconds = [line["seconds"] for line in resumed.metrics]
    assert seconds == sorted(seconds)


@pytest.fixture
def begun(recipe):
    """A run of four steps with checkpoints 2 and 4."""
    values = recipe()
    train(values)
    return values, Path(values["output"])


def test_half_a_checkpoint_is_passed_over(begun):
    values, run = begun
    recipe = Recipe.read(values)
    assert find_checkpoint(recipe, True) == str(run / "checkpoint-4")
    expected = load_file(run / "final" / "model.safetensors")
    (run / "checkpoint-4" / "trainer_state.json").write_text('{"epoch"')
    assert find_checkpoint(recipe, True) == str(run / "checkpoint-2")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    training = train(values, resume=True)
    again = load_file(run / "final" / "model.safetensors")
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    assert [line["step"] for line in training.metrics] == [1, 2, 3, 4]


def test_a_new_run_needs_a_folder_of_its_own_and_a_resumed_one_its_recipe(begun):
    values, run = begun
    with pytest.raises(ValueError, match=f"`output` is '{run}', which holds checkpoints"):
        train(values)
    with pytest.raises(ValueError, match="`learning_rate` is 0.5, but must be 0.01, as in the run that is resumed"):
        train(values, resume=True, learning_rate=0.5)
    with pytest.raises(ValueError, match="`lora` is .*, but must be None"):
        train(values, resume=True, lora=True)
    shutil.rmtree(run)
    assert find_checkpoint(Recipe.read(values), True) is None


class Harm:
    """What a file of an optimizer must not be able to do."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_runs_no_code(begun, tmp_path, name):
    values, run = begun
    harmed = tmp_path / "harmed"
    shutil.rmtree(run / "checkpoint-4")
    torch.save({"state": Harm(harmed)}, run / "checkpoint-2" / name)
    with pytest.raises(pickle.UnpicklingError, match="[Ww]eights"):
        train(values, resume=True)
    assert not harmed.exists()
    torch.load(run / "checkpoint-2" / name, weights_only=False)
    assert harmed.exists()
