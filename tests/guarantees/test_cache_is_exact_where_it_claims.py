"""`refresh_interval=1` is no cache, static storage is dynamic storage, and every forward computes what it should."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, Scripted, counted_forwards, table
from probes import NO_CACHE, POLICIES, cases

APPROXIMATE = ["prefix", "dual", "vicinity"]


def same(one, other):
    assert torch.equal(one.sequences, other.sequences)
    assert torch.equal(one.commit_step, other.commit_step)
    assert torch.equal(one.num_forwards, other.num_forwards)


@given(cases(policies=[NO_CACHE]), st.sampled_from(APPROXIMATE), st.sampled_from([1.0, 1.5]))
@settings(max_examples=60)
def test_refresh_in_every_step_is_no_cache(llada, case, policy, scale):
    exact = llada.generate(**case.inputs, **case.options, guidance_scale=scale)
    cached = {"cache_policy": policy, "policy_config": {"refresh_interval": 1}, "guidance_scale": scale}
    same(exact, llada.generate(**case.inputs, **{**case.options, **cached}))


@given(cases(policies=POLICIES[1:]))
@settings(max_examples=40)
def test_static_is_dynamic(llada, case):
    dynamic = llada.generate(**case.inputs, **case.options, cache_implementation="dynamic")
    same(dynamic, llada.generate(**case.inputs, **case.options, cache_implementation="static"))


def test_the_cache_is_approximate_in_between(llada):
    """Keys and values of other columns are old inside a block, so the tests above could fail."""
    options = {"max_new_tokens": 16, "block_length": 8}
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    exact = llada.generate(ids, **options)
    assert any(not torch.equal(llada.generate(ids, **options, cache_policy=p), exact) for p in APPROXIMATE)


@pytest.mark.parametrize("interval", [None, 1, 2, 3])
@pytest.mark.parametrize(("prompt", "new_tokens", "length"), [(5, 12, 4), (1, 7, 3), (9, 6, 64)])
def test_query_tokens_of_every_forward(llada, prompt, new_tokens, length, interval):
    """none: whole canvas. prefix: block and rest. dual: block. A refresh: whole canvas."""
    canvas = prompt + new_tokens
    expected = {"none": [], "prefix": [], "dual": []}
    for start in range(prompt, canvas, length):
        end = min(start + length, canvas)
        for step in range(end - start):
            refresh = step == 0 or (interval is not None and step % interval == 0)
            expected["none"].append(canvas)
            expected["prefix"].append(canvas if refresh else canvas - start)
            expected["dual"].append(canvas if refresh else end - start)
    ids = torch.arange(prompt)[None]
    for policy, widths in expected.items():
        config = {} if policy == "none" else {"policy_config": {"refresh_interval": interval}}
        with counted_forwards(llada) as shapes:
            llada.generate(
                ids, max_new_tokens=new_tokens, block_length=length, cache_policy=policy, eos_token_id=MASK, **config
            )
        assert shapes == [(1, width) for width in widths]


def test_rows_of_different_width_do_not_share_a_forward():
    """A row that refreshes does not widen the window of the others: one forward per class of widths."""
    fast = [(5, 0.99)] * 4
    script = table(*fast, *[(7, 0.3)] * 40, prompt=1)
    model = Scripted(script)
    inputs = {
        "input_ids": torch.tensor([[0] * 16 + [1], [1] * 17]),
        "attention_mask": torch.tensor([[0] * 16 + [1], [1] * 17]),
    }
    model.generate(**inputs, max_new_tokens=8, block_length=4, decoder="threshold", threshold=0.9, cache_policy="dual")
    shapes = [tuple(call.input_ids.shape) for call in model.calls]
    # Row 0 is done with its first block in one step, and refreshes (9 columns) while row 1 works on 4.
    assert shapes[:3] == [(1, 9), (1, 25), (1, 9)] and shapes[3] == (1, 4)


def test_a_window_reads_what_lies_outside_from_the_cache(llada):
    """Only keys of real columns are visible, padding and scratch columns never are."""
    masks = []
    hook = llada.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(kwargs["attention_mask"].clone()), with_kwargs=True
    )
    inputs = {"input_ids": torch.tensor([[0, 0, 5], [1, 2, 3]]), "attention_mask": torch.tensor([[0, 0, 1], [1, 1, 1]])}
    llada.generate(**inputs, max_new_tokens=4, block_length=4, cache_policy="dual", cache_implementation="static")
    hook.remove()
    windows = [mask for mask in masks if mask.shape[0] == 2]
    assert windows and all(mask.shape == (2, 1, 1, 64) for mask in windows)
    assert all(mask.sum((1, 2, 3)).tolist() == [5, 7] for mask in windows)
