"""The guarantees for block-causal models: decoder x policy x shapes, with the schedule of block diffusion."""

import pytest
import torch
from counting import reads
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK
from probes import (
    BLOCK_CAUSAL,
    BLOCK_DECODERS,
    BLOCK_POLICIES,
    FINAL,
    MEMORYLESS,
    BlockIdling,
    BlockRecorder,
    answer,
    block_cases,
)
from promises import RAGGED, SAMPLED, check_early_stop, check_idling, check_rows, check_same, compare, same

from dllm_generate.schedules.block_diffusion import BlockDiffusionSchedule

LIKE = {"return_dict_in_generate": True, **BLOCK_CAUSAL}


def call(model, inputs, options, **more):
    torch.manual_seed(3)
    return model.generate(**inputs, **{**LIKE, **options, **more})


def surplus(case, row):
    """Positions behind the last one that is returned."""
    before = 0 if case.options["schedule_config"]["prompt_is_one_block"] else len(case.prompts[row])
    return -(before + case.options["max_new_tokens"]) % case.options["block_length"]


@given(block_cases())
@settings(max_examples=150)
def test_a_row_is_its_single_run(llada, case):
    check_rows(llada, case)


@pytest.mark.parametrize("one_block", [True, False])
def test_every_decoder_with_every_policy(llada, one_block):
    for decoder in BLOCK_DECODERS:
        for policy in BLOCK_POLICIES:
            options = {**decoder, **policy, "max_new_tokens": 9, "block_length": 4}
            options["schedule_config"] = {"prompt_is_one_block": one_block}
            output = call(llada, RAGGED, options)
            for row, prompt in enumerate(([5], [3, 1, 4, 1, 5], [9, 2, 6])):
                compare(output, row, call(llada, {"input_ids": torch.tensor([prompt])}, options))


@given(block_cases(), st.booleans())
@settings(max_examples=80)
def test_every_step_of_a_row_commits(llada, case, early_stop):
    """Or looks at a complete block, a bounded number of times."""
    editing = case.options["decoder"] == "editing"
    case.options["schedule_config"]["early_stop"] = early_stop
    left = {row: case.options["max_new_tokens"] + surplus(case, row) for row in range(len(case.prompts))}
    length, total, ran_in = case.options["block_length"], dict(left), dict.fromkeys(left, 0)
    rounds = case.options.get("decoder_config", {}).get("max_post_steps", 16) if editing else 0
    schedule = case.schedule(BlockRecorder)
    output = llada.generate(**case.inputs, **case.options, schedule=schedule)
    for rows, ran, still_open in schedule.log:
        for row, has_run, count in zip(rows, ran, still_open):
            assert count == left[row] if not has_run else count < left[row] or (editing and count == left[row])
            left[row] = count
            ran_in[row] += has_run
    for row, positions in total.items():
        assert ran_in[row] == output.num_forwards[row] <= positions + (positions // length + 1) * rounds


@given(block_cases(max_rows=2))
@settings(max_examples=40)
def test_early_stop_saves_forwards_and_changes_no_text(llada, case):
    check_early_stop(llada, case)


@given(block_cases(), st.integers(0, 99), st.booleans())
@settings(max_examples=60)
def test_random_idling_changes_nothing(llada, case, salt, sampled):
    check_idling(llada, case, salt, sampled, BlockDiffusionSchedule, BlockIdling)


@given(block_cases(), st.sampled_from([2, 3, 5]), st.booleans())
@settings(max_examples=60)
def test_unrolled_equals_plain(llada, case, unroll, sampled):
    check_same(llada, case, *({**(SAMPLED if sampled else {}), "unroll_steps": n} for n in (1, unroll)))


@given(block_cases(decoders=MEMORYLESS), st.integers(1, 6), st.sampled_from([1, 3]), st.booleans())
@settings(max_examples=80)
def test_lossless_lookahead_is_the_plain_run(llada, case, drafts, unroll, sampled):
    options = {**case.options, **(SAMPLED if sampled else {})}
    plain = call(llada, case.inputs, options)
    ahead = call(llada, case.inputs, options, lookahead={"drafts": drafts}, unroll_steps=unroll)
    assert torch.equal(plain.sequences, ahead.sequences) and torch.equal(plain.commit_step, ahead.commit_step)
    torch.testing.assert_close(plain.confidence, ahead.confidence, atol=1e-4, rtol=1e-4)
    assert (ahead.num_forwards <= plain.num_forwards).all()


@given(block_cases(decoders=FINAL), st.integers(1, 6))
@settings(max_examples=40)
def test_other_lookahead_keeps_its_promises(llada, case, drafts):
    more = {"lookahead": {"drafts": drafts, "lossless": False}}
    output = call(llada, case.inputs, case.options, **more)
    for row in range(len(case.prompts)):
        assert MASK not in answer(output, row)
        alone = call(llada, case.single(row), case.options, **more)
        assert answer(output, row) == answer(alone)


@given(block_cases(), st.sampled_from([{"temperature": 1.3}, {"temperature": 0.8, "top_k": 9}]))
@settings(max_examples=40)
def test_a_seed_gives_one_sample_whatever_runs_beside(llada, case, sampler):
    options = {**case.options, **sampler, "do_sample": True}
    first, again = (call(llada, case.inputs, options) for _ in range(2))
    assert torch.equal(first.sequences, again.sequences)
    assert answer(first) == answer(call(llada, case.single(0), options))


@pytest.mark.parametrize("extra", [{"guidance_scale": 1.7}, {"logits_shift": True}, {"guidance_scale": 2.0, **SAMPLED}])
@pytest.mark.parametrize("policy", ["none", "block"])
def test_idling_and_unrolling_with(llada, extra, policy):
    options = {"decoder": "threshold", "threshold": 0.4, "cache_policy": policy, "max_new_tokens": 9, **extra}
    plain = call(llada, RAGGED, options, schedule=BlockDiffusionSchedule(4))
    same(plain, call(llada, RAGGED, options, schedule=BlockIdling(4, salt=7)))
    same(plain, call(llada, RAGGED, options, schedule=BlockDiffusionSchedule(4), unroll_steps=3))


@pytest.mark.parametrize(
    ("decoder", "steps"),
    [
        ({"decoder": "dynamic", "threshold": 1.0}, 16),
        # One look at the complete block, which corrects nothing.
        ({"decoder": "editing", "threshold": 1.0, "decoder_config": {"editing_threshold": 1.0}}, 17),
    ],
)
@pytest.mark.parametrize("policy", ["none", "block"])
def test_the_host_reads_once_per_step(llada, monkeypatch, decoder, steps, policy):
    """By how much a block of 16 more counts."""
    options = {**BLOCK_CAUSAL, **decoder, "cache_policy": policy}
    long, short = (len(reads(llada, monkeypatch, n, **options)) for n in (48, 32))
    assert long - short == steps
