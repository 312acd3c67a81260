"""The model is shown so many masks behind the block, and no more."""

import pytest
import torch
from models import counted_forwards

from dllm_generate import DiffusionGenerationConfig

PROMPT = torch.tensor([[5, 9, 11, 2]])
OPTIONS = {"max_new_tokens": 16, "block_length": 4, "decoder": "threshold", "threshold": 0.3}
CACHED = ["prefix", "dual", "vicinity"]


def run(model, policy, suffix, **options):
    config = {"suffix_window": suffix} if suffix is not None else {}
    return model.generate(PROMPT, cache_policy=policy, policy_config={**config, **options}, **OPTIONS)


@pytest.mark.parametrize("policy", ["none", *CACHED])
def test_a_window_that_reaches_the_end_is_none_at_all(llada, policy):
    assert torch.equal(run(llada, policy, 12), run(llada, policy, None))


@pytest.mark.parametrize("policy", ["none", *CACHED])
@pytest.mark.parametrize("suffix", [0, 3])
def test_what_lies_behind_it_is_as_if_it_were_not_there(llada, policy, suffix):
    """The first block of a long answer equals that of an answer that ends with the window."""
    short = llada.generate(
        PROMPT, cache_policy=policy, **{**OPTIONS, "max_new_tokens": 4 + suffix}, schedule_config={"early_stop": False}
    )
    assert torch.equal(run(llada, policy, suffix)[0, :8], short[0, :8])


def test_forwards_are_as_wide_as_what_is_shown(llada):
    with counted_forwards(llada) as shapes:
        run(llada, "none", 2)
    assert {width for _, width in shapes} == {10, 14, 18, 20}
    with counted_forwards(llada) as shapes:
        run(llada, "prefix", 2)
    assert {width for _, width in shapes} == {10, 14, 18, 20} | {6, 4}


@pytest.mark.parametrize("policy", CACHED)
def test_a_refresh_in_every_step_is_no_cache(llada, policy):
    assert torch.equal(run(llada, policy, 2, refresh_interval=1), run(llada, "none", 2))


def test_rows_of_a_ragged_batch_equal_their_single_runs(llada):
    ids, mask = torch.tensor([[60, 60, 7], [5, 9, 11]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    options = {**OPTIONS, "cache_policy": "dual", "policy_config": {"suffix_window": 3}}
    both = llada.generate(ids, attention_mask=mask, **options)
    for row, prompt in enumerate((ids[:1, 2:], ids[1:])):
        alone = llada.generate(prompt, **options)[0, prompt.shape[1] :]
        assert torch.equal(both[row, 3 : 3 + len(alone)], alone)


def test_refused():
    with pytest.raises(ValueError, match="`suffix_window` is -1, but must be None or an int >= 0"):
        DiffusionGenerationConfig(cache_policy="dual", policy_config={"suffix_window": -1})
