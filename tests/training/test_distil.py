"""The script that distils the bundled model: records, trains, is stopped and goes on."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from dllm_generate.bundled import load
from dllm_generate.evaluation.harness import evaluate

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "distil.py"
SMALL = "--rows 2 --parts 1 --every 1 --held-out 1 --warmup 0 --level 0".split()


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["distil.py", *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    file = tmp_path_factory.mktemp("paths") / "paths.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        run(patch, "record", "--output", file, "--n", 4, "--level", 0, "--canvas", 32, "--easy", 1)
    return file


@pytest.mark.parametrize("what", ["trajectory", "d2f"])
def test_it_trains_and_goes_on_after_a_stop(tmp_path, monkeypatch, paths, what):
    extra = ["--paths", paths, "--replay", 0.5] if what == "trajectory" else []
    arguments = (what, "--output", tmp_path, *extra, *SMALL, "--steps", 2)
    calls = []

    def stopped(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("dllm_generate.evaluation.harness.evaluate", stopped)
        run(patch, *arguments)
    run(monkeypatch, *arguments, "--resume")
    scores = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [line["step"] for line in scores] == [0, 1, 2] and len(scores[2]) == 3
    model, _ = load(tmp_path / "snapshot")
    assert str(model.dtype) == "torch.bfloat16" and not hasattr(model, "peft_config")
