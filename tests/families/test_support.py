"""The lists of what a family works with: that they are true, and that the documentation holds them."""

import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from kin import SIZES, member
from models import counted_forwards
from typer.testing import CliRunner

from dllm_generate.caches import POLICIES
from dllm_generate.cli import app
from dllm_generate.decoders import DECODERS
from dllm_generate.families import Family, preset_names, register_family
from dllm_generate.families import base as registry
from dllm_generate.families.llada import LLaDAConfig
from dllm_generate.families.support import GENERATED, family_support, support_table
from dllm_generate.schedules import SCHEDULES

DOCS = Path(__file__).parents[2] / "docs" / "families"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """The pages as a fresh process refreshes them: other tests register families and parts of their own in this one."""
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        empty = GENERATED.sub(r"\1\3", page.read_text())
        (folder / page.name).write_text(empty)
    command = [sys.executable, "-m", "dllm_generate.cli", "families", "--update", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return {page.name: (folder / page.name).read_text() for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_documentation_is_up_to_date(page, refreshed):
    stale = "refresh it: dllm-generate families --update docs/families"
    assert page.read_text() == refreshed[page.name], stale


def test_every_family_has_a_page(refreshed):
    table = GENERATED.search(refreshed["index.md"])[0].split("\n\n")[1]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(names) >= set(SIZES)
    pages = [text for page, text in refreshed.items() if page != "index.md"]
    assert not [name for name in names if not any(f"`{name}`" in page for page in pages)]
    navigation = (DOCS.parents[1] / "mkdocs.yml").read_text()
    assert all(f"families/{page.name}" in navigation for page in PAGES)


@pytest.mark.parametrize("name", SIZES)
def test_the_page_of_a_family_names_its_ids(name):
    (page,) = [text for text in map(Path.read_text, PAGES) if f"families {name} --markdown" in text]
    config = registry._REGISTRY[name].config_class()
    assert f"mask {config.mask_token_id}" in page and f"eos and pad {config.eos_token_id}" in page
    assert config.pad_token_id == config.eos_token_id
    eot = family_support(name).family.special_token_ids.get("eot")
    assert eot is None or str(eot) in page


def runs(model, **options):
    """Whether a call is decoded. A refusal comes before the first forward."""
    with counted_forwards(model) as shapes:
        try:
            model.generate(torch.tensor([[5, 9, 11]]), max_new_tokens=1, **options)
        except ValueError:
            assert not shapes
            return False
    return True


@pytest.mark.parametrize("name", SIZES)
def test_the_list_is_what_generate_does(name):
    support, model = family_support(name), member(name)
    # Without the parts that other tests register.
    schedules, policies, decoders = (
        [name for name, part in kind.parts.items() if part.__module__.startswith("dllm_generate.")]
        for kind in (SCHEDULES, POLICIES, DECODERS)
    )
    for combination in [*product(schedules, policies, ["threshold"]), *product(schedules, ["none"], decoders)]:
        options = dict(zip(("schedule", "cache_policy", "decoder"), combination))
        assert runs(model, **options) == (combination in support.combinations), combination
    for preset in preset_names():
        assert runs(model, preset=preset) == (preset in support.presets), preset


def test_a_family_of_a_user_is_listed(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", {})
    register_family(Family("mine", block_length=8, attention="block_causal"), LLaDAConfig, architectures=("A", "B"))
    (support,) = support_table()
    assert (support.published, support.native, support.presets[0]) == (("A", "B"), "", "published")
    assert set(support.schedules) >= {"block_diffusion"} and not {"blockwise", "seeded"} & set(support.schedules)
    row = support.row()
    assert row["native class"] == "as published" and row["blocks"].startswith("8")
    assert "not `wino`" in row["decoders"] and f"of {len(DECODERS.parts)}" in row["decoders"]


def test_a_part_that_needs_a_schedule_says_so():
    row = family_support("fast_dllm").row()
    assert "`sub_block` (only `seeded`)" in row["cache policies"]
    assert family_support("fast_dllm").schedules_of("sub_block") == ("seeded",)


def test_command():
    run = CliRunner().invoke
    printed = run(app, ["families"]).stdout
    assert all(word in printed for word in ("llada2_moe", "LLaDA2MoeForMaskedDiffusion", "published-2.1", "seeded"))
    assert run(app, ["families", "sdar"]).stdout.count("native class") == 1
    assert run(app, ["families", "--markdown"]).stdout.startswith("| family | model_type |")
    assert "| `published` | `block_diffusion` | `4` |" in run(app, ["families", "sdar", "--markdown"]).stdout
    refused = run(app, ["families", "bert"])
    assert refused.exit_code == 2 and "`family` is 'bert', but must be one of ['" in refused.output
