"""Reading and checking recipes."""

import json

import pytest

from dllm_generate.training.objectives import BlockDiffusion, CausalLM, MaskedDiffusion, Mixture
from dllm_generate.training.recipe import Lora, Recipe
from dllm_generate.training.sources import JsonlSource, TaskSource


def test_a_file_and_a_dict_say_the_same(tmp_path):
    values = {"output": "x", "learning_rate": 2e-4, "lora": {"r": 4}, "data": {"name": "tasks", "level": 1}}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text("output: x\nlearning_rate: 2e-4\nlora: {r: 4}\ndata: {name: tasks, level: 1}\n")
    recipe = Recipe.read(values)
    assert recipe == Recipe.read(tmp_path / "a.json") == Recipe.read(str(tmp_path / "a.yaml"))
    recipe.save(tmp_path / "saved.yaml")
    assert Recipe.read(tmp_path / "saved.yaml") == recipe == Recipe.read(recipe) == Recipe.read(recipe.to_dict())


def test_changes_lead_into_dicts():
    values = {"output": "x", "lora": {"r": 4}}
    recipe = Recipe.read(values, **{"lora.alpha": 8, "data.name": "tasks", "data.level": 0, "steps": 7})
    assert (recipe.lora, recipe.steps, recipe.make_source()) == (Lora(4, 8), 7, TaskSource(level=0))
    assert values == {"output": "x", "lora": {"r": 4}}
    with pytest.raises(ValueError, match="`steps.x` is 1, but must be a key of a dict, which `steps` is not"):
        Recipe.read(values, **{"steps": 3, "steps.x": 1})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("step", 3, r"has the key 'step' with the value 3, but only takes \['output'"),
        ("steps", 0, "`steps` is 0, but must be an int of at least 1"),
        ("steps", True, "`steps` is True"),
        ("warmup", 2000, "`warmup` is 2000, but must be at most `steps`, which is 1000"),
        ("parts", 3, "`parts` is 3, but must be a divisor of `rows`, which is 16"),
        ("learning_rate", 0, "`learning_rate` is 0, but must be a number above 0"),
        ("learning_rate", "fast", "`learning_rate` is 'fast'"),
        ("weight_decay", float("nan"), "`weight_decay` is nan"),
        ("optimizer", "sgd", r"`optimizer` is 'sgd', but must be one of \['adamw', 'muon'\]"),
        ("optimizer", ["adamw"], "`optimizer` is "),
        ("schedule", "steep", "`schedule` is 'steep'"),
        ("decay", 1.5, "`decay` is 1.5, but must be a number from 0 to 1"),
        ("dtype", "int8", "`dtype` is 'int8'"),
        ("bf16", "yes", "`bf16` is 'yes', but must be true or false"),
        ("seed", -1, "`seed` is -1, but must be an int of at least 0"),
        ("output", "", "`output` is '', but must be a text that is not empty"),
        ("model", 3, "`model` is 3"),
        ("lora", {"rank": 3}, r"`lora` is \{'rank': 3\}, but must be a dict with keys of"),
        ("lora", {"r": 0}, "`lora.r` is 0"),
        ("lora", {"dropout": 1}, "`lora.dropout` is 1"),
        ("lora", {"targets": []}, r"`lora.targets` is \[\]"),
        ("family", {"mask": 3}, r"`family` is \{'mask': 3\}"),
        ("family", {"attention": "causal"}, "`family.attention` is 'causal'"),
        ("family", {"mask_token_id": -1}, "`family.mask_token_id` is -1"),
        ("objective", "mlm", "`objective` is 'mlm', but must be one of .*'block_diffusion', 'causal_lm'"),
        ("objective", [], r"`objective` is \[\]"),
        ("objective", {"tail": 3}, r"`objective` is \{'tail': 3\}, but must be a name, or a dict with a `name`"),
        (
            "objective",
            {"name": "causal_lm", "tail": 3},
            r"`objective.tail` is 3, but 'causal_lm' only takes \['tail_we",
        ),
        ("objective", {"name": "block_diffusion", "tail": -3}, "`tail` is -3"),
        ("objective", {"name": "block_diffusion", "block_sizes": [0]}, r"`block_sizes` is \[0\]"),
        ("objective", {"name": "masked_diffusion", "block_fraction": 2}, "`block_fraction` is 2"),
        ("objective", {"name": "masked_diffusion", "mask_token_id": 2}, "is 2, but .* Facts of the model belong in"),
        ("objective", [{"name": "causal_lm", "weight": 0}, {"name": "causal_lm"}], "`objective.weight` is 0"),
        ("data", "chats.txt", "`data` is 'chats.txt', but must be one of"),
        ("data", {"name": "tasks", "tasks": ["sing"]}, r"`tasks` is \['sing'\]"),
        ("data", {"name": "tasks", "tasks": {"add": 0}}, r"`tasks` is \{'add': 0\}"),
        ("data", {"name": "tasks", "level": 4}, "`level` is 4, but must be an int from 0 to 3"),
        ("data", {"name": "jsonl", "file": 3}, "`file` is 3"),
    ],
)
def test_bad_values_are_named_with_what_is_allowed(key, value, allowed):
    with pytest.raises(ValueError, match=allowed):
        Recipe.read({"output": "x", key: value})


def test_what_is_no_recipe(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "b.yaml").write_text("a: [1\n")
    for source, message in (
        (tmp_path / "a.yaml", r"`recipe` is \[1, 2\], but must be a mapping"),
        (tmp_path / "b.yaml", "b.yaml cannot be read"),
        (tmp_path / "c.toml", "`recipe` is .*c.toml', but must be a .yaml, .yml or .json file"),
        ({"output": tmp_path}, "no plain JSON value"),
        ({"steps": 3}, "`output` is None, but must be the folder of the run"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe.read(source)


def test_objectives_and_sources_by_name():
    recipe = Recipe("x", objective={"name": "block_diffusion", "block_sizes": [2, 4]}, data="some.jsonl")
    assert recipe.make_objective() == BlockDiffusion(0, (2, 4)) and recipe.make_source() == JsonlSource("some.jsonl")
    mixture = Recipe("x", objective=[{"name": "causal_lm", "weight": 3}, {"name": "masked_diffusion"}])
    assert isinstance(mixture.make_objective(), Mixture)
    assert mixture.make_objective().objectives == (CausalLM(), MaskedDiffusion(0))
    assert mixture.make_objective().weights.tolist() == [3, 1]
    assert mixture.needs_family and not Recipe("x", objective="causal_lm").needs_family
