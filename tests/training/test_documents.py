"""What is written about training: every key with its default, and recipes that run."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from dllm_generate.training.objectives import OBJECTIVES
from dllm_generate.training.recipe import DTYPES, OPTIMIZERS, SCHEDULES, Lora, Recipe
from dllm_generate.training.run import train
from dllm_generate.training.sources import SOURCES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text()
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))


def table(section):
    """Rows of the first table of a section, without its head."""
    text = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return rows[2:]


@pytest.mark.parametrize(("section", "cls"), [("Keys", Recipe), ("LoRA", Lora)])
def test_every_key_is_there_with_its_default(section, cls):
    written = {key.strip("`"): yaml.safe_load(default) for key, default, _ in table(section)}
    made = cls(**({"output": "x"} if cls is Recipe else {}))
    known = {field.name: getattr(made, field.name) for field in dataclasses.fields(cls)}
    assert {**written, "output": "x"} == {**known, "output": "x"}
    assert list(written) == list(known)


def test_every_name_is_there():
    meanings = {key.strip("`"): meaning for key, _, meaning in table("Keys")}
    for key, names in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("dtype", DTYPES)):
        assert all(f"`{name}`" in meanings[key] for name in names)
    built_in = {name for name, cls in OBJECTIVES.parts.items() if cls.__module__.startswith("dllm_generate.")}
    assert {name for row in table("Objectives") for name in re.findall(r"`(\w+)`", row[0])} == built_in
    assert {row[0].strip("`") for row in table("Data")} == set(SOURCES.parts)


def test_settings_of_the_built_in_parts_are_told():
    facts = {"mask_token_id", "logits_shift", "block_length", "prompt_is_one_block"}
    for section, registry in (("Objectives", OBJECTIVES), ("Data", SOURCES)):
        for row in table(section):
            name = row[0].strip("`")
            if "distillation.md" not in row[1]:
                assert all(f"`{setting}`" in row[-1] for setting in set(registry.fields(name)) - facts), name


def test_the_recipe_of_the_page_is_one(tmp_path):
    (tmp_path / "recipe.yaml").write_text(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    recipe = Recipe.read(tmp_path / "recipe.yaml")
    assert (recipe.lora, recipe.learning_rate) == (Lora(16, 32, 0.05), 1e-4)


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_recipes_run(file, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    small = {"steps": 2, "warmup": 1, "rows": 4, "parts": 2}
    training = train(file, output=str(tmp_path), **small)
    assert training.metrics[-1]["step"] == 2 and training.written
    assert f"dllm-generate train examples/recipes/{file.name}" in file.read_text()
    assert f"`{file.name}`" in PAGE
