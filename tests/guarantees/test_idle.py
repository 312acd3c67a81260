"""A row that idles at random gives the tokens of a run without idling, and nothing of it changes meanwhile."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import DECODERS, GRID, Idling, cases
from promises import RAGGED, SAMPLED, check_idling, same

import dllm_generate.denoise as loop
from dllm_generate.schedules.blockwise import BlockwiseSchedule


def both(model, inputs, options, plain, salt=7):
    """The output of a plain call and of one with idling rows; the same seed."""
    for schedule in (plain, Idling(**vars(plain), salt=salt)):
        torch.manual_seed(3)
        yield model.generate(**inputs, **options, schedule=schedule)


@given(cases(), st.integers(0, 99), st.booleans())
@settings(max_examples=60)
def test_random_idling_changes_nothing(llada, case, salt, sampled):
    check_idling(llada, case, salt, sampled, BlockwiseSchedule, Idling)


@pytest.mark.parametrize("sampled", [False, True])
def test_every_decoder_with_every_policy(llada, sampled):
    for decoder in DECODERS + [{"decoder": "fixed", "decoder_config": {"ranking": "random"}}]:
        for policy in GRID:
            options = {**decoder, **policy, "max_new_tokens": 8, "return_dict_in_generate": True}
            same(*both(llada, RAGGED, {**options, **(SAMPLED if sampled else {})}, BlockwiseSchedule(3)))


@pytest.mark.parametrize(
    "options", [{"guidance_scale": 1.7}, {"logits_shift": True}, {"guidance_scale": 2.0, **SAMPLED}]
)
def test_with_guidance_and_shift(llada, options):
    options = {"decoder": "threshold", "threshold": 0.4, "cache_policy": "dual", "max_new_tokens": 9, **options}
    same(*both(llada, RAGGED, {**options, "return_dict_in_generate": True}, BlockwiseSchedule(4)))


# What a step tells the decoder, for this step alone.
OF_THE_STEP = [("state", "editable"), ("state", "verification")]


def snapshot(run):
    """Everything that belongs to a row of the batch, without the scratch column."""
    parts = {"steps": run.steps}
    for name in ("canvas", "state", "cache_state"):
        for field in dataclasses.fields(getattr(run, name)):
            value = getattr(getattr(run, name), field.name)
            if isinstance(value, torch.Tensor) and (name, field.name) not in OF_THE_STEP:
                parts[f"{name}.{field.name}"] = value[:, 1:] if value.dim() > 1 else value
    for number, layer in enumerate(run.cache.layers if run.cache is not None else ()):
        halves = layer.keys.shape[0] // run.steps.numel()
        for name in ("keys", "values"):
            split = getattr(layer, name)[:, :, 1:].unflatten(0, (halves, run.steps.numel()))
            parts[f"{name}.{number}"] = split.transpose(0, 1)
    return {name: value.clone() for name, value in parts.items()}


@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
@pytest.mark.parametrize("extra", [{}, {"guidance_scale": 1.5}, SAMPLED])
@pytest.mark.parametrize("decoder", ["fixed", "threshold", "factor", "wino"])
def test_nothing_of_an_idle_row_moves(llada, monkeypatch, decoder, policy, extra):
    """Tokens, open positions, K/V, counters and decoder state, before and after each step."""
    plain, idle_steps = loop.step, []

    def watched(run, blocks, *args):
        before = snapshot(run)
        plain(run, blocks, *args)
        after, idle = snapshot(run), ~blocks.ran
        for name, value in before.items():
            assert torch.equal(value[idle], after[name][idle]), name
        assert (after["steps"] - before["steps"]).equal(blocks.ran.long())
        idle_steps.append(int(idle.sum()))

    monkeypatch.setattr(loop, "step", watched)
    llada.generate(
        **RAGGED, decoder=decoder, cache_policy=policy, max_new_tokens=9, schedule=Idling(4, salt=5), **extra
    )
    assert sum(idle_steps) > 3
