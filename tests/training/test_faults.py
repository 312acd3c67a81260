"""Faults of recipes, data and runs: what is refused by name, and what has to work."""

import json
from pathlib import Path

import pytest
import torch
from models import MASK, tiny_llada
from safetensors.torch import load_file

from dllm_generate.evaluation.prompts import read_prompts
from dllm_generate.training.objectives import BlockDiffusion
from dllm_generate.training.optimizers import muon_with_adam
from dllm_generate.training.recipe import Recipe
from dllm_generate.training.run import train
from dllm_generate.training.sources import JsonlSource


def holding(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_weights_of_a_mixture_may_be_ints(recipe):
    objective = [{"name": "masked_diffusion", "weight": 1}, {"name": "causal_lm", "weight": 2}]
    assert len(train(recipe(objective=objective, steps=1)).metrics) == 1


def test_only_line_breaks_end_a_line(tmp_path):
    texts = ["a\u2028b", "c\u2029d\u0085", "e\x0bf"]
    lines = [json.dumps({"prompt": text, "answer": text}, ensure_ascii=False) for text in texts]
    file = holding(tmp_path, "\r\n".join(lines))
    assert [answer for _, answer in JsonlSource(file).pairs] == texts
    assert [prompt.text for prompt in read_prompts(file)] == texts
    (tmp_path / "a.txt").write_text("a\u2028b\nc", encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(tmp_path / "a.txt")] == ["a\u2028b", "c"]


@pytest.mark.parametrize("read", [lambda file: JsonlSource(file).read(), read_prompts], ids=["source", "prompts"])
@pytest.mark.parametrize("text", [b'{"prompt": "\xe9", "answer": "b"}', r'{"prompt": "\ud800", "answer": "b"}'])
def test_files_with_what_is_no_text_are_named(tmp_path, read, text):
    with pytest.raises(ValueError, match="a.jsonl.* (UTF-8|surrogate)"):
        read(holding(tmp_path, text))


@pytest.mark.parametrize("held", ["final/model.safetensors", "adapter/x", "recipe.yaml", "metrics.jsonl"])
def test_results_of_another_run_are_not_overwritten(recipe, tmp_path, held):
    file = tmp_path / "run" / held
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    with pytest.raises(ValueError, match=f"`output` is .*, which holds {Path(held).parts[0]}: resume, or name another"):
        train(recipe())
    assert file.read_text() == "precious"


def test_the_output_is_no_file(recipe, tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(ValueError, match="`output` is .*, but must be a folder, not a file"):
        train(recipe())


def test_metrics_without_a_step_are_left_out(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{}\n5\n{"step": 0}\n{"step": "x"}\n')
    training = train(recipe(steps=1), resume=True)
    assert [line["step"] for line in training.metrics] == [0, 1]


def test_muon_trains_an_adapter_and_goes_on(recipe, tmp_path):
    values = recipe(lora={"r": 2}, optimizer="muon", steps=2, save_every=1)
    first = load_file(train(values).written[0] / "adapter_model.safetensors")
    assert any(weight.abs().sum() > 0 for name, weight in first.items() if "lora_B" in name)
    (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").unlink()
    again = load_file(train(values, resume=True).written[0] / "adapter_model.safetensors")
    assert all(torch.equal(again[name], first[name]) for name in first)


def test_muon_needs_something_to_train():
    with pytest.raises(ValueError, match="`model` is 'LLaDA.*', but must be one with a parameter"):
        muon_with_adam(tiny_llada().requires_grad_(False))


def test_a_target_that_is_left_out_is_named(recipe, tmp_path):
    with pytest.raises(ValueError, match=r"`lora.targets` is \['nope', 'proj'\], but must be names of layers"):
        train(recipe(lora={"targets": ["q_proj", "nope", "proj"]}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"data": "jsonl"}, r"`data` is 'jsonl', but must be given with \['file'\] in `data`"),
        ({"data": "datasets"}, r"`data` is 'datasets', but must be given with \['folder'\]"),
        ({"data": {"name": "trajectories"}}, r"`data` is 'trajectories', but must be given with \['file'\]"),
        ({"data": {"name": "tasks", "tasks": [["a"]]}}, r"`tasks` is \[\['a'\]\]"),
        ({"data": {"name": "datasets", "folder": "x", "split": 3}}, "`split` is 3"),
        ({"seed": 2**40}, r"`seed` is 1099511627776, but must be an int below 2 \*\* 32"),
        ({"objective": {"name": "block_diffusion", "block_length": 0}}, "`block_length` is 0"),
        ({"objective": {"name": "block_diffusion", "block_length": "x"}}, "`block_length` is 'x'"),
        ({"objective": "d2f"}, "`lora` is None, but must be given .* give `objective.teacher`"),
        ({"objective": [{"name": "d2f"}, {"name": "causal_lm"}]}, "`lora` is None"),
    ],
)
def test_recipes_that_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        Recipe.read({"output": "x", **keys})


def test_recipes_of_d2f_that_need_no_adapter():
    for settings in ({"teacher": "somewhere"}, {"self_align": False}):
        assert Recipe("x", objective={"name": "d2f", **settings}).make_objective().needs_adapter is False
    assert Recipe("x", objective="d2f", lora=True).make_objective().needs_adapter


def test_d2f_with_a_named_teacher_trains_the_whole_model(recipe, folders):
    training = train(recipe(objective={"name": "d2f", "teacher": folders("llada"), "block_length": 4}, steps=1))
    assert training.written[0].name == "final"


def test_blocks_of_another_length_than_the_model_are_named(recipe):
    for name, value in (("block_length", 8), ("block_sizes", [8])):
        with pytest.raises(ValueError, match=rf"`{name}` is .*8.*, but must be .*4"):
            train(recipe("sdar", objective={"name": "block_diffusion", name: value}))
    assert BlockDiffusion(MASK, block_length=8).block_sizes == (8,)


def test_a_recipe_that_is_no_text_is_named(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"output: \xe9")
    with pytest.raises(ValueError, match="a.yaml cannot be read"):
        Recipe.read(tmp_path / "a.yaml")
