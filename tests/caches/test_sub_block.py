"""The cache inside a block: what is recomputed when, and that rows do not depend on each other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, counted_forwards, padded
from probes import BLOCK_DECODERS, block_cases
from promises import compare

SEEDED = {"attention": "block_causal", "logits_shift": True, "schedule": "seeded"}
SUB_BLOCK = {"cache_policy": "sub_block"}


def options(part, **more):
    values = {**SEEDED, "block_length": 8, "schedule_config": {"prompt_is_one_block": False, "sub_block_length": part}}
    return {**values, **SUB_BLOCK, "decoder": "fixed", "eos_token_id": MASK, "return_dict_in_generate": True, **more}


def widths(model, prompt, part, **more):
    with counted_forwards(model) as shapes:
        model.generate(torch.tensor([prompt]), **options(part, **more))
    return [width for _, width in shapes]


def test_query_tokens_of_every_forward(llada):
    """One token per step. A whole block has one column more, which predicts its first position."""
    # Seed; the first sub-block once with the block, then alone; the second one, whose first position may stay open.
    found = widths(llada, [3] * 8, 4, max_new_tokens=16)
    for seed, first in ((8, 0), (9, 8)):
        assert found[first] == seed and found[first + 1] == 9
        assert found[first + 2 : first + 4] == [4, 4]
        assert found[first + 4] == 9 and set(found[first + 5 : first + 8]) <= {9, 4}
    # The prompt's tail is computed with the block: no seed.
    found = widths(llada, [3] * 10, 4, max_new_tokens=6)
    assert found[:2] == [16, 4] and found[2] == 9


def test_a_sub_block_is_recomputed_with_its_block_until_its_first_position_is_decided(llada):
    with counted_forwards(llada) as shapes:
        output = llada.generate(torch.tensor([[3] * 8]), **options(4, max_new_tokens=8))
    steps = output.commit_step[0].tolist()
    # Position 4 begins the second sub-block, which is worked on from step 4 on.
    assert [width for _, width in shapes[4:]] == [9 if step <= steps[4] else 4 for step in range(4, 8)]


@pytest.mark.parametrize("part", [None, 8])
def test_without_sub_blocks_it_is_the_block_cache(llada, part):
    inputs = padded([[5, 1, 2], [3] * 8, [6] * 12])
    policies = ("block", "sub_block")
    plain, cached = (llada.generate(**inputs, **options(part, max_new_tokens=17, cache_policy=p)) for p in policies)
    assert torch.equal(plain.sequences, cached.sequences) and torch.equal(plain.commit_step, cached.commit_step)


def test_it_is_another_text_than_that_of_the_exact_cache(llada):
    inputs = padded([[5, 1, 2], [3] * 8, [6] * 12])
    policies = ("block", "sub_block")
    exact, cached = (llada.generate(**inputs, **options(4, max_new_tokens=32, cache_policy=p)) for p in policies)
    assert not torch.equal(exact.sequences, cached.sequences)


@given(block_cases(policies=[SUB_BLOCK]), st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, 2, 3]))
@settings(max_examples=100)
def test_ragged_rows_equal_their_single_run(llada, case, part, unroll):
    case.options |= SEEDED
    case.options["schedule_config"] = {**case.options["schedule_config"], "sub_block_length": part}
    case.options.pop("steps", None)
    output = llada.generate(**case.inputs, **case.options, unroll_steps=unroll)
    for row in range(len(case.prompts)):
        compare(output, row, llada.generate(**case.single(row), **case.options))


def test_every_decoder(llada):
    inputs = padded([[5, 1, 2], [3] * 8, [6] * 12])
    for decoder in BLOCK_DECODERS:
        output = llada.generate(**inputs, **{**options(3, max_new_tokens=13), **decoder})
        assert not (output.sequences[:, 12:] == MASK).any()


def test_what_it_cannot_serve(llada):
    with pytest.raises(ValueError, match="'sub_block', which needs a schedule with sub-blocks.*'block_diffusion'"):
        llada.generate(torch.tensor([[5]]), attention="block_causal", schedule="block_diffusion", **SUB_BLOCK)
    with pytest.raises(ValueError, match="'sub_block', which needs block-causal attention"):
        llada.generate(torch.tensor([[5]]), **SUB_BLOCK)
