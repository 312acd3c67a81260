"""The guarantees for pipelined blocks: decoder x policy x thresholds x shapes."""

import pytest
import torch
from counting import IDS, reads
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, counted_forwards
from probes import (
    BLOCK_CAUSAL,
    BLOCK_POLICIES,
    NO_CACHE,
    PIPELINE_DECODERS,
    PipelineIdling,
    PipelineRecorder,
    answer,
    pipelined_cases,
)
from promises import RAGGED, SAMPLED, check_early_stop, check_idling, check_rows, check_same, compare, same

from dllm_generate.schedules.pipelined import PipelinedSchedule

LIKE = {"return_dict_in_generate": True, **BLOCK_CAUSAL, "schedule": "pipelined"}
EAGER = {"block_add_threshold": 0.1, "decoded_token_threshold": 0.5}


def call(model, inputs, options, **more):
    torch.manual_seed(3)
    return model.generate(**inputs, **{**LIKE, **options, **more})


@given(pipelined_cases())
@settings(max_examples=100)
def test_a_row_is_its_single_run(llada, case):
    check_rows(llada, case)


@pytest.mark.parametrize("one_block", [True, False])
def test_every_decoder_with_every_policy(llada, one_block):
    for decoder in PIPELINE_DECODERS:
        for policy in BLOCK_POLICIES:
            options = {**decoder, **policy, "max_new_tokens": 13, "block_length": 4}
            options["schedule_config"] = {"prompt_is_one_block": one_block, **EAGER}
            output = call(llada, RAGGED, options)
            for row, prompt in enumerate(([5], [3, 1, 4, 1, 5], [9, 2, 6])):
                compare(output, row, call(llada, {"input_ids": torch.tensor([prompt])}, options))


@given(pipelined_cases(max_rows=2), st.sampled_from(["block_add_threshold", "blocks_in_flight"]))
@settings(max_examples=30)
def test_one_block_at_a_time_is_block_diffusion(llada, case, bound):
    case.options["schedule_config"][bound] = 1
    pipelined = call(llada, case.inputs, case.options)
    layout = {"prompt_is_one_block": case.options["schedule_config"]["prompt_is_one_block"]}
    plain = call(llada, case.inputs, case.options, schedule="block_diffusion", schedule_config=layout)
    same(plain, pipelined)


@given(pipelined_cases(max_rows=2, policies=[NO_CACHE]))
@settings(max_examples=30)
def test_the_exact_cache_equals_recomputation(llada, case):
    plain = call(llada, case.inputs, case.options)
    cached = call(llada, case.inputs, case.options, cache_policy="block")
    assert torch.equal(plain.sequences, cached.sequences) and torch.equal(plain.commit_step, cached.commit_step)
    assert torch.equal(plain.num_forwards, cached.num_forwards)


@given(pipelined_cases())
@settings(max_examples=30)
def test_every_step_of_a_row_commits(llada, case):
    length, new_tokens = case.options["block_length"], case.options["max_new_tokens"]
    one_block = case.options["schedule_config"]["prompt_is_one_block"]
    before = [0 if one_block else len(prompt) for prompt in case.prompts]
    left = {row: new_tokens + -(prompt + new_tokens) % length for row, prompt in enumerate(before)}
    schedule = case.schedule(PipelineRecorder)
    output = llada.generate(**case.inputs, **case.options, schedule=schedule)
    for rows, ran, still_open in schedule.log:
        for row, has_run, count in zip(rows, ran, still_open):
            assert count < left[row] if has_run else count == left[row]
            left[row] = count
    for row in left:
        assert MASK not in answer(output, row)


@given(pipelined_cases(max_rows=2))
@settings(max_examples=30)
def test_early_stop_saves_forwards_and_changes_no_text(llada, case):
    check_early_stop(llada, case)


@given(pipelined_cases(), st.integers(0, 99), st.booleans())
@settings(max_examples=50)
def test_random_idling_changes_nothing(llada, case, salt, sampled):
    check_idling(llada, case, salt, sampled, PipelinedSchedule, PipelineIdling)


@given(pipelined_cases(), st.sampled_from([2, 3, 5]), st.booleans())
@settings(max_examples=50)
def test_unrolled_equals_plain(llada, case, unroll, sampled):
    check_same(llada, case, *({**(SAMPLED if sampled else {}), "unroll_steps": n} for n in (1, unroll)))


@pytest.mark.parametrize("extra", [{"guidance_scale": 1.7}, {"logits_shift": True}, {"smoothing": True}, SAMPLED])
@pytest.mark.parametrize("policy", ["none", "block"])
def test_with(llada, extra, policy):
    options = {"decoder": "credit", "threshold": 0.4, "cache_policy": policy, "max_new_tokens": 14, **extra}
    plain = call(llada, RAGGED, options, schedule=PipelinedSchedule(4, **EAGER))
    same(plain, call(llada, RAGGED, options, schedule=PipelineIdling(4, **EAGER, salt=7)))
    same(plain, call(llada, RAGGED, options, schedule=PipelinedSchedule(4, **EAGER), unroll_steps=3))
    if extra is not SAMPLED:
        for row, prompt in enumerate(([5], [3, 1, 4, 1, 5], [9, 2, 6])):
            single = {"input_ids": torch.tensor([prompt])}
            compare(plain, row, call(llada, single, options, schedule=PipelinedSchedule(4, **EAGER)))


def test_blocks_overlap(llada):
    """Positions of several blocks are committed in one step."""
    options = {"decoder": "threshold", "threshold": 0.4, "block_length": 4, "max_new_tokens": 16}
    output = call(llada, {"input_ids": torch.tensor([[3, 1, 4]])}, options, schedule_config=EAGER)
    blocks_of_step = [set((output.commit_step[0] == step).nonzero()[:, 0].div(4).int().tolist()) for step in range(9)]
    assert max(map(len, blocks_of_step)) >= 2
    alone = call(llada, {"input_ids": torch.tensor([[3, 1, 4]])}, options, schedule_config={"block_add_threshold": 1.0})
    assert output.num_forwards < alone.num_forwards


@pytest.mark.parametrize("policy", ["none", "block"])
def test_one_host_read_per_step(llada, monkeypatch, policy):
    options = {"decoder": "fixed", "cache_policy": policy, **LIKE}
    counts = {}
    for new_tokens in (32, 64):
        names = reads(llada, monkeypatch, new_tokens, **options)
        output = llada.generate(IDS, max_new_tokens=new_tokens, eos_token_id=MASK, block_length=16, **options)
        counts[new_tokens] = len(names) - int(output.num_forwards[0])
    assert counts[32] == counts[64]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule_config": {"block_add_threshold": 0}}, r"`block_add_threshold` is 0, .* a number in \(0, 1\]"),
        ({"schedule_config": {"decoded_token_threshold": 1.5}}, r"`decoded_token_threshold` is 1.5"),
        ({"schedule_config": {"blocks_in_flight": 0}}, "`blocks_in_flight` is 0, but must be None or an int > 0"),
        ({"decoder": "editing"}, "`decoder` is 'editing', which takes commits back, but `schedule` 'pipelined'"),
        ({"attention": "bidirectional"}, "needs block-causal attention"),
        ({"lookahead": True}, "several blocks at once"),
        ({"block_add_threshold": 0.5}, "schedule_config"),
    ],
)
def test_what_cannot_work_says_so(llada, options, message):
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=message):
        call(llada, {"input_ids": torch.tensor([[3]])}, {"decoder": "threshold", "max_new_tokens": 8, **options})
    assert not shapes


def test_state_follows_its_block():
    """What a decoder remembers of a block stays with it as the blocks in front of it leave the buffer."""
    from dllm_generate.decoders.base import DecoderState
    from dllm_generate.sampling import Sampler

    state = DecoderState(torch.tensor([4, 5, 6, 7, 8, -1]), torch.arange(6), torch.full((6,), 9), Sampler())
    moved = state.following(torch.tensor([[5, 6], [7, 8]]))
    assert moved.block.tolist() == [5, 6, 7, 8] and moved.step.tolist() == [1, 2, 3, 4]
    grown = moved.following(torch.tensor([[6, 7, 8], [7, 8, 9]]))
    assert grown.block.tolist() == [6, -1, -1, 7, 8, -1]
