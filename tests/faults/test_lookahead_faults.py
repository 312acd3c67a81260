"""Faults of look-ahead decoding, of several steps in one launch, and of what a call leaves behind."""

import gc

import pytest
import torch
from models import MASK, Scripted, counted_forwards, padded, table, tiny_llada
from probes import answer
from promises import RAGGED
from promises import same_text as same

from dllm_generate import DiffusionCache
from dllm_generate.decoders.joint import windowed_sum

ONE = {"input_ids": torch.tensor([[3, 1, 4]])}
LOSSY = {"drafts": 9, "lossless": False}


def call(model, inputs, **options):
    torch.manual_seed(3)
    return model.generate(**inputs, return_dict_in_generate=True, **options)


@pytest.mark.parametrize("drafts", [2, 4, 6])
def test_a_guess_that_is_reached_sooner_than_guessed_has_the_wrong_step(llada, drafts):
    """A row may commit in one step what was guessed for two: the steps behind it were one too high."""
    options = {"decoder": "threshold", "threshold": 0.3, "max_new_tokens": 24, "block_length": 24}
    same(call(llada, RAGGED, **options), call(llada, RAGGED, **options, lookahead={"drafts": drafts}))


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([4, 14], {"cache_policy": "prefix", "block_length": 6, "schedule_config": {"align": "end"}}),
        ([8], {"cache_policy": "prefix", "block_length": 3, "schedule_config": {"align": "position"}}),
        ([15], {"cache_policy": "vicinity", "policy_config": {"prefix_look": 8, "after_look": 8}, "block_length": 4}),
    ],
)
def test_a_refresh_inside_a_launch_reaches_the_guesses(llada, prompt, options):
    """A window may be as wide as the refresh that follows it. The guesses kept their former keys and values."""
    options = {**options, "decoder": "fixed", "max_new_tokens": 16}
    inputs = {"input_ids": torch.tensor([prompt])}
    same(call(llada, inputs, **options), call(llada, inputs, **options, lookahead={"drafts": 3}, unroll_steps=5))


@pytest.mark.parametrize("lookahead", [True, LOSSY])
def test_the_scratch_column_decides_nothing(lookahead):
    """Where a block is shorter than `block_length`, what other rows left in the scratch column made guesses fail."""
    model = tiny_llada().double()
    rows = [[0, 1, 59, 48], [22, 11, 53, 22, 7, 19, 12], [40, 26]]
    for align in ("prompt", "position", "end"):
        options = {"decoder": "fixed", "max_new_tokens": 7, "block_length": 64, "guidance_scale": 0.5}
        options |= {"schedule_config": {"align": align}, "lookahead": lookahead}
        batch = call(model, padded(rows), **options)
        for row, prompt in enumerate(rows):
            alone = call(model, {"input_ids": torch.tensor([prompt])}, **options)
            assert answer(batch, row) == answer(alone)
            assert batch.num_forwards[row] == alone.num_forwards[0]


@pytest.mark.parametrize("policy", [{}, {"cache_policy": "dual", "policy_config": {"refresh_interval": 3}}])
@pytest.mark.parametrize("lookahead", [{"drafts": 4}, LOSSY])
def test_a_row_that_waits_for_a_launch_keeps_its_guesses(policy, lookahead):
    """They were made anew from scores that the row had not run for, so that `unroll_steps` changed the result."""
    model = tiny_llada().double()
    for decoder in ({"decoder": "fixed"}, {"decoder": "hierarchical", "threshold": 0.6}):
        for block_length in (3, 6):
            options = {**decoder, **policy, "max_new_tokens": 14, "block_length": block_length, "lookahead": lookahead}
            plain = call(model, RAGGED, **options)
            for unroll in (2, 3, 5):
                ahead = call(model, RAGGED, **options, unroll_steps=unroll)
                same(plain, ahead)
                assert torch.equal(plain.num_forwards, ahead.num_forwards)


@pytest.mark.parametrize("interval", [None, 1, 2, 3])
@pytest.mark.parametrize("lossless", [True, False])
def test_every_forward_is_counted(llada, interval, lossless):
    """The refresh of a guess was a further forward of the model: 18 in all for 16 tokens, of which 12 were counted."""
    options = {"decoder": "fixed", "max_new_tokens": 16, "block_length": 8, "eos_token_id": MASK}
    options |= {"cache_policy": "dual", "policy_config": {"refresh_interval": interval}}
    with counted_forwards(llada) as shapes:
        output = call(llada, ONE, **options, lookahead={"drafts": 4, "lossless": lossless})
    assert len(shapes) == output.num_forwards[0] <= 16


@pytest.mark.parametrize("options", [{}, {"lookahead": True}, {"decoder": "wino"}, {"unroll_steps": 3}])
def test_keys_and_values_are_freed_with_the_call(llada, options):
    """Without the cycle collector: what a GPU holds does not wait for it."""
    gc.collect()
    gc.disable()
    try:
        before = sum(type(thing) is DiffusionCache for thing in gc.get_objects())
        llada.generate(**RAGGED, max_new_tokens=4, cache_policy="dual", **options)
        assert sum(type(thing) is DiffusionCache for thing in gc.get_objects()) == before
    finally:
        gc.enable()


def test_a_radius_beyond_the_block_costs_nothing():
    """It was padded with as many zeros as it has positions."""
    values = torch.arange(5.0)[None]
    assert windowed_sum(values, 1 << 40).tolist() == [[10.0] * 5]
    assert windowed_sum(values, 4).tolist() == [[10.0] * 5]
    assert windowed_sum(values, 3).tolist() == [[6.0, 10.0, 10.0, 10.0, 10.0]]


def test_a_token_is_no_repetition_of_itself():
    """A penalty must not take commits back where no token comes twice."""
    forwards = []
    for penalty in (None, 1.3):
        model = Scripted(table(*((token, 0.97) for token in range(1, 13))) + 8.0)
        options = {"max_new_tokens": 12, "block_length": 12, "decoder": "wino", "repetition_penalty": penalty}
        forwards.append(call(model, {"input_ids": torch.tensor([[40]])}, **options).num_forwards.tolist())
    assert forwards[0] == forwards[1] == [2]
