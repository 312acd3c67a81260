"""Same seed, same tokens; another seed, another sample; each row its own noise, whatever runs beside it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import DECODERS, GRID, answer, cases

SAMPLERS = [
    {"temperature": 1.3},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 9},
    {"top_p": 0.9},
    {"min_p": 0.02},
]


def sample(model, inputs, options, seed=0):
    torch.manual_seed(seed)
    return model.generate(**inputs, do_sample=True, **options)


@given(cases(), st.sampled_from(SAMPLERS), st.integers(0, 2**40))
@settings(max_examples=50)
def test_a_seed_gives_one_sample(llada, case, sampler, seed):
    options = {**case.options, **sampler}
    first, again = (sample(llada, case.inputs, options, seed) for _ in range(2))
    assert torch.equal(first.sequences, again.sequences)
    assert torch.equal(first.commit_step, again.commit_step)


@given(cases(), st.sampled_from(SAMPLERS))
@settings(max_examples=40)
def test_row_zero_does_not_depend_on_the_others(llada, case, sampler):
    options = {**case.options, **sampler}
    assert answer(sample(llada, case.inputs, options)) == answer(sample(llada, case.single(0), options))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("decoder", ["fixed", "threshold", "factor"])
def test_seeds_and_rows_differ(llada, decoder, sampler):
    options = {"decoder": decoder, "max_new_tokens": 24, "block_length": 8, **sampler}
    ids = {"input_ids": torch.tensor([[3, 5]])}
    one, other = (sample(llada, ids, options, seed) for seed in (1, 2))
    assert not torch.equal(one, other)
    rows = sample(llada, ids, {**options, "num_return_sequences": 4})
    assert len({tuple(row) for row in rows.tolist()}) == 4


def test_every_decoder_and_policy_samples_a_batch(llada):
    """Draws are made for every row, and stay inside top-k."""
    ids = torch.tensor([[3, 5], [7, 2], [7, 2]])
    for decoder in DECODERS:
        for policy in GRID:
            options = {**decoder, **policy, "max_new_tokens": 8, "block_length": 4}
            rows = sample(llada, {"inputs": ids}, {**options, "temperature": 2.0})
            assert rows.shape[0] == 3 and rows[1].tolist() != rows[2].tolist()
    greedy = llada.generate(ids, max_new_tokens=8)
    assert torch.equal(sample(llada, {"inputs": ids}, {"max_new_tokens": 8, "top_k": 1}), greedy)


def test_greedy_draws_no_random_number(llada):
    ids = torch.tensor([[3, 5], [7, 2]])
    for options in ({}, {"do_sample": False}, {"do_sample": True, "temperature": 0.0}, {"temperature": 0.0}):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        output = llada.generate(ids, max_new_tokens=6, **options)
        assert torch.equal(before, torch.get_rng_state())
        assert torch.equal(output, llada.generate(ids, max_new_tokens=6))


def test_random_order_is_seeded_and_ignores_logits(llada):
    """`ranking="random"`: greedy tokens in an order that the seed alone decides."""
    options = {"max_new_tokens": 8, "decoder_config": {"ranking": "random"}, "return_dict_in_generate": True}
    orders = []
    for prompt, seed in ((3, 0), (7, 0), (3, 1)):
        torch.manual_seed(seed)
        orders.append(llada.generate(torch.tensor([[prompt]]), **options).commit_step.tolist())
    assert orders[0] == orders[1] != orders[2]
