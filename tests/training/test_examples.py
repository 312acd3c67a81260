"""The scripts that train and export the bundled model, on a model of a few thousand weights."""

import runpy
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import dllm_generate  # noqa: F401  (registers the families)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = "--hidden 32 --layers 1 --heads 2 --mlp 32 --rows 4 --parts 2 --every 2 --save 2 --stages 0:0:add=2,map 1:1:add"


def run(script, arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


@pytest.mark.parametrize("extra", [[], ["--causal"]])
def test_train_resume_export_generate(tmp_path, monkeypatch, extra):
    runs, folder = tmp_path / "run", tmp_path / "repo"
    arguments = ["--output", runs, *SMALL.split(), *extra]
    run("train_tiny.py", [*arguments, "--max-steps", 2], monkeypatch)
    run("train_tiny.py", [*arguments, "--max-steps", 4, "--resume"], monkeypatch)
    assert (runs / "checkpoint-4").is_dir()
    run("export_tiny.py", [runs / "final", folder, *extra], monkeypatch)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == ("LlamaForCausalLM" if extra else "LLaDAForMaskedDiffusion")
    assert model.generation_config.do_sample is False
    more = ["--output", tmp_path / "more", *SMALL.split(), *extra, "--init", folder, "--max-steps", 2]
    run("train_tiny.py", more, monkeypatch)
    chat = [{"role": "user", "content": "Add 1 to each: k=3."}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert model.generate(**inputs, max_new_tokens=4).shape[1] <= inputs["input_ids"].shape[1] + 4
