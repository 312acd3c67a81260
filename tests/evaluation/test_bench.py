"""What the benchmark counts; no timing is asserted."""

import os

import pytest
import torch
from models import byte_tokenizer, tiny_llada

from dllm_generate.caches import POLICIES
from dllm_generate.decoders import DECODERS
from dllm_generate.evaluation.bench import (
    FIXED_ENVIRONMENT,
    fixed_environment,
    measure_overhead,
    measure_speed,
    overhead_configs,
)
from dllm_generate.evaluation.memory import StepMeter, measure_memory
from dllm_generate.evaluation.tasks import Problem


@pytest.fixture(scope="module")
def pair():
    tokenizer = byte_tokenizer()
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    return tiny_llada(vocabulary=len(tokenizer), **ids), tokenizer


def test_overhead_compares_a_call_with_its_own_forwards(pair):
    fixed, factor = measure_overhead(
        pair[0], overhead_configs(["fixed", "factor"]), runs=2, prompt_length=8, new_tokens=32
    )
    assert fixed.forwards == 32 > factor.forwards
    assert len(fixed.ratios) == 2 and fixed.ratio > 1
    assert fixed.loop_ms > 0 and fixed.forward_ms > 0
    assert not pair[0].get_decoder()._forward_hooks and not pair[0].get_output_embeddings()._forward_pre_hooks


def test_overhead_is_measured_of_every_decoder_and_policy():
    configs = overhead_configs()
    assert {config["decoder"] for config in configs} == set(DECODERS.parts)
    assert {config["cache_policy"] for config in configs} == set(POLICIES.parts) - {"block"}


def test_speed_takes_turns_and_compares_with_the_first(pair):
    configs = [{"decoder": "fixed", "max_new_tokens": 8}, {"decoder": "fixed", "steps": 4, "max_new_tokens": 8}]
    one, two = measure_speed(*pair, configs, runs=1, problems=[Problem("add", "1+1", "2")])
    assert one.ratio == 1.0 and two.ratio == pytest.approx(two.tokens_per_second / one.tokens_per_second)
    assert two.tokens_per_forward > one.tokens_per_forward > 0


def test_step_memory_does_not_grow_with_the_prompt(pair):
    results = measure_memory(["fixed", "factor"], prompt_lengths=(16, 400), model=pair[0])
    peaks = {(r.decoder, r.cache_policy): set() for r in results}
    for r in results:
        peaks[r.decoder, r.cache_policy].add(r.peak_bytes)
    assert len(results) == 2 * len(peaks) == 12
    block_scores = 32 * pair[0].config.vocab_size * 4
    for case, found in peaks.items():
        assert len(found) == 1 and found.pop() >= block_scores, case


def test_the_meter_counts_what_is_live_at_once_outside_the_body():
    body = torch.nn.Linear(100, 100)
    weight, meter = torch.ones(1000), StepMeter(body)
    with meter, torch.no_grad():
        held = torch.zeros(500)
        meter.begin_step()
        weight.view(10, 100).t()
        inside = body(torch.ones(100, 100))
        temporary = torch.zeros(300)
        del temporary
        kept = torch.zeros(200)
        torch.zeros(250)
    assert meter.peaks == [100 * 100 * 4]
    with meter, torch.no_grad():
        meter.begin_step()
        first = torch.zeros(300)
        del first
        second = torch.zeros(200)
        third = torch.zeros(250)
    assert meter.peaks[-1] == 450 * 4
    assert all(x is not None for x in (held, inside, kept, second, third))


def test_a_fixed_environment_is_asked_for_once(monkeypatch):
    for name in FIXED_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    wanted = fixed_environment()
    assert wanted is not None and FIXED_ENVIRONMENT.items() <= wanted.items()
    for name in FIXED_ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    assert fixed_environment() is None
