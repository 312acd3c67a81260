"""The exact cache of block-causal models: what it recomputes, and that nothing else differs from recomputation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, counted_forwards, padded
from probes import BLOCK_CAUSAL, BLOCK_DECODERS, NO_CACHE, block_cases
from promises import SAMPLED, same

RAGGED = padded([[5], [3, 1, 4, 1, 5], [9, 2, 6]])
BLOCK = {"cache_policy": "block", "policy_config": None}


def call(model, inputs, **options):
    torch.manual_seed(3)
    return model.generate(**inputs, **{"return_dict_in_generate": True, **BLOCK_CAUSAL, **options})


@given(block_cases(policies=[NO_CACHE]), st.sampled_from([None, "static"]), st.booleans())
@settings(max_examples=100)
def test_it_equals_recomputation(llada, case, storage, sampled):
    options = {**case.options, **(SAMPLED if sampled else {})}
    plain = call(llada, case.inputs, **options)
    same(plain, call(llada, case.inputs, **{**options, **BLOCK, "cache_implementation": storage}))


@pytest.mark.parametrize("extra", [{"guidance_scale": 1.7}, {"logits_shift": True}, {"smoothing": True}])
@pytest.mark.parametrize("one_block", [True, False])
def test_with(llada, extra, one_block):
    options = {"decoder": "threshold", "threshold": 0.4, "max_new_tokens": 13, "block_length": 4, **extra}
    options["schedule_config"] = {"prompt_is_one_block": one_block}
    for storage in (None, "static"):
        cached = call(llada, RAGGED, **options, **BLOCK, cache_implementation=storage)
        same(call(llada, RAGGED, **options, **NO_CACHE), cached)


def test_every_decoder(llada):
    for decoder in BLOCK_DECODERS:
        options = {**decoder, "max_new_tokens": 10, "block_length": 4}
        same(call(llada, RAGGED, **options, **NO_CACHE), call(llada, RAGGED, **options, **BLOCK))


def forwards(model, prompt, **options):
    """Rows and widths of all forwards, one token per step unless the options say otherwise."""
    with counted_forwards(model) as shapes:
        output = call(
            model, {"input_ids": torch.tensor(prompt)}, **{"block_length": 4, "eos_token_id": MASK, **BLOCK, **options}
        )
    assert output.num_forwards.tolist() == [len(shapes)] * len(prompt)
    return shapes


@pytest.mark.parametrize(
    ("one_block", "widths"),
    [
        # 6 prompt tokens, then blocks of 4; the first forward of each block seals what is in front of it.
        (True, [10, 4, 4, 4, 8, 4, 4, 4]),
        # Blocks begin at 0, 4, 8 and 12: 2 open positions in the first one, 2 surplus ones in the last.
        (False, [8, 4, 8, 4, 4, 4, 8, 4, 4, 4]),
    ],
)
def test_query_tokens_of_every_forward(llada, one_block, widths):
    """No forward for the prompt, and none that only seals a block."""
    options = {"max_new_tokens": 8, "schedule_config": {"prompt_is_one_block": one_block}}
    shapes = forwards(llada, [[3, 1, 4, 1, 5, 9]], **options)
    assert shapes == [(1, width) for width in widths]


def test_as_many_forwards_as_denoising_steps(llada):
    shapes = forwards(llada, [[3, 1, 4, 1]], decoder="fixed", steps_per_block=2, max_new_tokens=12)
    assert shapes == [(1, 8), (1, 4)] * 3


def test_the_unconditional_half_of_guidance_is_cached_too(llada):
    shapes = forwards(llada, [[3, 1, 4, 1, 5, 9]], max_new_tokens=8, guidance_scale=1.5)
    assert shapes == [(2, width) for width in [10, 4, 4, 4, 8, 4, 4, 4]]


def test_shifted_logits_take_one_column_more(llada):
    shapes = forwards(llada, [[3, 1, 4, 1, 5, 9]], max_new_tokens=8, logits_shift=True)
    assert shapes == [(1, width) for width in [10, 5, 5, 5, 9, 5, 5, 5]]


def test_rows_that_end_leave_the_cache(llada):
    """A row goes on unharmed when others are gone, whatever place it had."""
    prompts = [[5, 2], [3, 1, 4, 1, 5], [9, 2, 6], [7, 7, 7, 7]]
    eos = [0, 17, 36, 45]
    options = {"max_new_tokens": 24, "block_length": 3, "eos_token_id": eos, **BLOCK}
    with counted_forwards(llada) as shapes:
        output = call(llada, padded(prompts), **options)
    assert len(set(output.num_forwards.tolist())) > 1 and len({rows for rows, _ in shapes}) > 1
    for row, prompt in enumerate(prompts):
        alone = call(llada, {"input_ids": torch.tensor([prompt])}, **options)
        length = alone.commit_step.shape[1]
        assert output.sequences[row, 5 : 5 + length].tolist() == alone.sequences[0, len(prompt) :].tolist()
        assert output.num_forwards[row] == alone.num_forwards[0]


def test_holes_in_the_prompt(llada):
    """Cells that the attention mask leaves out are nowhere, also where they lie inside a block."""
    holes = {
        "input_ids": torch.tensor([[3, 60, 1, 60, 60, 4, 1, 60, 5]]),
        "attention_mask": torch.tensor([[1, 0, 1, 0, 0, 1, 1, 0, 1]]),
    }
    dense = {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}
    for one_block in (True, False):
        for policy in (BLOCK, NO_CACHE):
            options = {"max_new_tokens": 9, "block_length": 4, **policy}
            options["schedule_config"] = {"prompt_is_one_block": one_block}
            one, other = (call(llada, inputs, **options) for inputs in (holes, dense))
            assert torch.equal(one.sequences[:, 9:], other.sequences[:, 5:])
            assert torch.equal(one.commit_step, other.commit_step)
            torch.testing.assert_close(one.confidence, other.confidence, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_policy": "block"}, "`cache_policy` is 'block', which needs block-causal attention"),
        (
            {**BLOCK_CAUSAL, "cache_policy": "dual"},
            "'dual', which approximates bidirectional attention.*'block' is exact",
        ),
    ],
)
def test_what_cannot_work_says_so_before_the_first_forward(llada, options, message):
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=message):
        llada.generate(torch.tensor([[3, 1]]), max_new_tokens=4, **options)
    assert not shapes
