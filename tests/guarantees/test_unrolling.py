"""Several steps from one host read to the next: the same text, and surplus steps change nothing."""

import pytest
import torch
from counting import IDS, reads
from hypothesis import given, settings
from hypothesis import strategies as st
from models import counted_forwards
from probes import DECODERS, POLICIES, answer, cases
from promises import RAGGED, SAMPLED, same_text


def same(one, other):
    same_text(one, other)
    assert torch.equal(one.num_forwards, other.num_forwards)


def both(model, inputs, options, unroll):
    for value in (None, unroll):
        torch.manual_seed(3)
        yield model.generate(**inputs, **{"return_dict_in_generate": True, **options, "unroll_steps": value})


@given(cases(), st.sampled_from([2, 3, 5]), st.booleans())
@settings(max_examples=100)
def test_unrolled_equals_plain(llada, case, unroll, sampled):
    same(*both(llada, case.inputs, {**case.options, **(SAMPLED if sampled else {})}, unroll))


def test_every_decoder_with_every_policy(llada):
    for decoder in DECODERS:
        for policy in POLICIES:
            same(*both(llada, RAGGED, {**decoder, **policy, "max_new_tokens": 9, "block_length": 4}, 3))


@pytest.mark.parametrize("extra", [{"guidance_scale": 1.7}, {"logits_shift": True}, {"smoothing": True}])
@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
def test_unrolled_with(llada, extra, policy):
    options = {"decoder": "threshold", "threshold": 0.4, "cache_policy": policy, "max_new_tokens": 12}
    same(*both(llada, RAGGED, {**options, "block_length": 4, **extra}, 4))


def test_the_host_reads_once_for_all_unrolled_steps(llada, monkeypatch):
    options = {"decoder": "threshold", "threshold": 1.0, "cache_policy": "none"}
    one, four = (
        [len(reads(llada, monkeypatch, n, unroll_steps=unroll, **options)) for n in (48, 32)] for unroll in (1, 4)
    )
    assert one[0] - one[1] == 16 and four[0] - four[1] == 4


def test_after_a_refresh_the_window_is_read_again(llada, monkeypatch):
    """One read for the refresh of a block of 16, then 15 steps with 4 reads."""
    options = {"decoder": "threshold", "threshold": 1.0, "cache_policy": "dual", "unroll_steps": 4}
    long, short = (len(reads(llada, monkeypatch, n, **options)) for n in (48, 32))
    assert long - short == 5


def test_surplus_forwards_are_run_but_not_counted(llada):
    """11 steps in launches of 4: one forward finds nothing to do."""
    options = {"decoder": "fixed", "max_new_tokens": 11, "block_length": 32, "unroll_steps": 4}
    with counted_forwards(llada) as shapes:
        output = llada.generate(IDS, return_dict_in_generate=True, eos_token_id=None, **options)
    assert len(shapes) == 12 and output.num_forwards.tolist() == [11]
    assert sorted(output.commit_step[0].tolist()) == list(range(11))
    assert len(answer(output)) == 11


def test_invalid_scores_are_found_behind_the_launch(llada):
    """In whichever of its steps they came up."""
    calls = []

    def poison(module, args, output):
        calls.append(1)
        return output + (float("nan") if len(calls) == 2 else 0.0)

    handle = llada.get_output_embeddings().register_forward_hook(poison)
    try:
        with pytest.raises(ValueError, match="NaN"):
            llada.generate(IDS, max_new_tokens=12, decoder="fixed", unroll_steps=4)
    finally:
        handle.remove()
    assert len(calls) == 4


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_bad_values(llada, value):
    with pytest.raises(ValueError, match="`unroll_steps` is"):
        llada.generate(IDS, max_new_tokens=4, unroll_steps=value)
