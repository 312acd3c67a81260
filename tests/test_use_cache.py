"""`use_cache`: only the caller's word counts."""

import pytest
import torch
from models import counted_forwards

from dllm_generate import DiffusionGenerationConfig, generation


def widths(model, **options):
    with counted_forwards(model) as shapes:
        model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, block_length=2, **options)
    return {width for _, width in shapes}


def test_use_cache_of_a_model_config_does_not_switch_off_a_policy(llada):
    assert llada.config.use_cache is False
    assert widths(llada, cache_policy="dual") == {7, 2}


@pytest.mark.parametrize(
    "options", [{"use_cache": False}, {"generation_config": DiffusionGenerationConfig(use_cache=False)}]
)
def test_use_cache_of_the_call_does(llada, options):
    assert widths(llada, preset="speed", **options) == {7}
    assert widths(llada, preset="speed") == {7, 2}


def test_a_contradiction_raises(llada):
    with pytest.raises(ValueError, match="`use_cache` is False, but `cache_policy` is 'dual'"):
        widths(llada, use_cache=False, cache_policy="dual")


def test_a_long_run_without_a_cache_hints_at_caches_once(llada, caplog, monkeypatch):
    generation._hint_at_caches.cache_clear()
    monkeypatch.setattr(generation, "LONG_RUN", 16)
    for _ in range(2):
        widths(llada, preset="published")
        widths(llada, cache_policy="dual")
    assert [record.getMessage() for record in caplog.records if "cache_policy" in record.getMessage()] == [
        "A long canvas is recomputed in every step: `cache_policy` 'prefix' or 'dual', or 'block' with block-causal "
        "attention, saves most of it."
    ]
