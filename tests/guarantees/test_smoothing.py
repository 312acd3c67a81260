"""Iteration smoothing in batches: in float64, since a random model amplifies the rounding of its own predictions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, padded, tiny_llada
from probes import DECODERS, NO_CACHE, POLICIES, Idling, answer, cases

import dllm_generate.denoise as loop
from dllm_generate.schedules.blockwise import BlockwiseSchedule

WITH_THRESHOLD = [options for options in DECODERS if "threshold" in options]
SMOOTHING = [True, {"top_k": 3}, {"initial_weight": 0.5, "growth": 0.2, "max_weight": 1.0, "temperature": 0.5}]
RAGGED = padded([[5], [3, 1, 4, 1, 5], [9, 2, 6]])


@pytest.fixture(scope="module")
def model():
    return tiny_llada().double()


def smoothed(policies=POLICIES, **kwargs):
    """Drawn calls with smoothing."""

    def add(case, smoothing):
        case.options["smoothing"] = smoothing
        return case

    drawn = cases(policies=policies, decoders=WITH_THRESHOLD, **kwargs)
    return st.builds(add, drawn, st.sampled_from(SMOOTHING))


def same(one, other, row=0, alone=0):
    length = other.commit_step.shape[1]
    assert answer(one, row) == answer(other, alone)
    assert one.commit_step[row, :length].tolist() == other.commit_step[alone].tolist()
    assert one.num_forwards[row] == other.num_forwards[alone]


@given(smoothed())
@settings(max_examples=60)
def test_a_row_is_its_single_run(model, case):
    output = model.generate(**case.inputs, **case.options)
    width = max(map(len, case.prompts))
    for row, prompt in enumerate(case.prompts):
        assert output.sequences[row, width - len(prompt) : width].tolist() == prompt
        assert MASK not in answer(output, row)
        same(output, model.generate(**case.single(row), **case.options), row)


def test_smoothing_changes_the_text(model):
    """Otherwise the other tests could not fail."""
    options = {"max_new_tokens": 24, "block_length": 8, "decoder": "threshold", "threshold": 0.5}
    plain, smooth = (model.generate(**RAGGED, **options, smoothing=value) for value in (False, True))
    assert not torch.equal(plain, smooth)


@given(smoothed(policies=[NO_CACHE]), st.sampled_from(["prefix", "dual", "vicinity"]))
@settings(max_examples=25)
def test_refresh_in_every_step_is_no_cache(model, case, policy):
    exact = model.generate(**case.inputs, **case.options)
    cached = {"cache_policy": policy, "policy_config": {"refresh_interval": 1}}
    output = model.generate(**case.inputs, **{**case.options, **cached})
    for row in range(len(case.prompts)):
        same(output, exact, row, row)


@given(smoothed(), st.integers(0, 99))
@settings(max_examples=25)
def test_random_idling_changes_nothing(model, case, salt):
    plain = case.schedule(BlockwiseSchedule)
    busy = model.generate(**case.inputs, **case.options, schedule=plain)
    idle = model.generate(**case.inputs, **case.options, schedule=Idling(**vars(plain), salt=salt))
    for row in range(len(case.prompts)):
        same(idle, busy, row, row)


@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
def test_soft_embeddings_of_an_idle_row_stay(model, monkeypatch, policy):
    plain, idle_steps = loop.step, []

    def watched(run, blocks, *args):
        before = run.soft.soft[:, 1:].clone()
        plain(run, blocks, *args)
        moved = (run.soft.soft[:, 1:] != before).flatten(1).any(1)
        assert torch.equal(moved, blocks.ran)
        idle_steps.append(int((~blocks.ran).sum()))

    monkeypatch.setattr(loop, "step", watched)
    options = {"decoder": "threshold", "cache_policy": policy, "max_new_tokens": 9, "smoothing": True}
    model.generate(**RAGGED, **options, schedule=Idling(4, salt=5))
    assert sum(idle_steps) > 3


@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
def test_infilling(model, policy):
    """Fixed text stays, also between open positions, and a row is its single run."""
    rows = [[7, MASK, MASK, 3, MASK, 2, MASK, MASK], [MASK, 4, MASK, MASK, MASK]]
    call = {"infill": True, "decoder": "threshold", "threshold": 0.5, "block_length": 3, "cache_policy": policy}
    output = model.generate(**padded(rows), **call, smoothing=True)
    for row, template in enumerate(rows):
        filled = output[row, -len(template) :].tolist()
        assert MASK not in filled
        assert all(old in (MASK, new) for old, new in zip(template, filled))
        assert filled == model.generate(torch.tensor([template]), **call, smoothing=True)[0].tolist()
