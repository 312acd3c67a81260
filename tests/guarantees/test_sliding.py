"""The guarantees for a block that slides, and what it may commit."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, counted_forwards
from probes import MEMORYLESS, NO_CACHE, POLICIES, Recording, Resting, answer, cases
from promises import RAGGED, SAMPLED, check_idling, check_rows, check_same, same

from dllm_generate.schedules.sliding import SlidingSchedule


@dataclasses.dataclass(frozen=True)
class Recorder(Recording, SlidingSchedule):
    log: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Idling(Resting, SlidingSchedule):
    salt: int = 0


@st.composite
def sliding_cases(draw, max_rows=3, policies=POLICIES):
    case = draw(cases(max_rows, policies, MEMORYLESS))
    case.options["schedule"] = "sliding"
    longest = st.sampled_from([None, None, case.options["block_length"] + 3, 80])
    case.options["schedule_config"] = {"max_block_length": draw(longest)}
    return case


def call(model, inputs, options, **more):
    torch.manual_seed(3)
    return model.generate(**inputs, **{"return_dict_in_generate": True, "schedule": "sliding", **options, **more})


@given(sliding_cases())
@settings(max_examples=100)
def test_a_row_is_its_single_run(llada, case):
    check_rows(llada, case)


@given(sliding_cases())
@settings(max_examples=40)
def test_every_step_of_a_row_commits(llada, case):
    left = dict.fromkeys(range(len(case.prompts)), case.options["max_new_tokens"])
    schedule = case.schedule(Recorder)
    output = llada.generate(**case.inputs, **case.options, schedule=schedule)
    for rows, ran, still_open in schedule.log:
        for row, has_run, count in zip(rows, ran, still_open):
            assert count < left[row] if has_run else count == left[row]
            left[row] = count
    assert not any(MASK in answer(output, row) for row in left)


@given(sliding_cases(), st.sampled_from([2, 3]), st.booleans())
@settings(max_examples=40)
def test_unrolled_equals_plain(llada, case, unroll, sampled):
    check_same(llada, case, *({**(SAMPLED if sampled else {}), "unroll_steps": n} for n in (1, unroll)))


@given(sliding_cases(), st.integers(0, 99), st.booleans())
@settings(max_examples=40)
def test_random_idling_changes_nothing(llada, case, salt, sampled):
    check_idling(llada, case, salt, sampled, SlidingSchedule, Idling)


@given(sliding_cases(max_rows=2, policies=[NO_CACHE]), st.sampled_from(["prefix", "dual", "vicinity"]))
@settings(max_examples=30)
def test_a_refresh_in_every_step_equals_no_cache(llada, case, policy):
    plain = call(llada, case.inputs, case.options)
    fresh = call(llada, case.inputs, case.options, cache_policy=policy, policy_config={"refresh_interval": 1})
    assert torch.equal(plain.sequences, fresh.sequences) and torch.equal(plain.commit_step, fresh.commit_step)


@pytest.mark.parametrize("extra", [{"guidance_scale": 1.7}, {"logits_shift": True}, {"smoothing": True}, SAMPLED])
@pytest.mark.parametrize("policy", ["none", "dual"])
def test_with(llada, extra, policy):
    options = {"decoder": "threshold", "threshold": 0.4, "cache_policy": policy, "max_new_tokens": 14, **extra}
    plain = call(llada, RAGGED, options, schedule=SlidingSchedule(4))
    same(plain, call(llada, RAGGED, options, schedule=Idling(4, salt=7)))
    same(plain, call(llada, RAGGED, options, schedule=SlidingSchedule(4), unroll_steps=3))


@pytest.mark.parametrize("longest", [None, 40])
@pytest.mark.parametrize("length", [3, 8])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_it_may_commit_the_next_open_positions(llada, length, longest, threshold):
    """Against a loop that follows the definition, without cache."""
    prompt, new_tokens, steps = [3, 1, 4, 1, 5], 24, 0
    ids = torch.tensor([prompt + [MASK] * new_tokens])
    opened = torch.arange(ids.shape[1]) >= len(prompt)
    while opened.any():
        scores = llada(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        scores[:, MASK] = float("-inf")
        confidence, tokens = scores.float().softmax(-1).max(-1)
        places = opened.nonzero()[:, 0]
        may = [p for p in places[:length].tolist() if p < places[0] + (longest or length)]
        chosen = [p for p in may if confidence[p] >= threshold] or [max(may, key=lambda p: confidence[p])]
        ids[0, chosen], opened[chosen] = tokens[chosen], False
        steps += 1
    output = call(
        llada,
        {"input_ids": torch.tensor([prompt])},
        {"decoder": "threshold", "threshold": threshold, "cache_policy": "none", "max_new_tokens": new_tokens},
        block_length=length,
        schedule_config={"max_block_length": longest},
        eos_token_id=MASK,
    )
    assert output.sequences.tolist() == ids.tolist() and output.num_forwards.tolist() == [steps]


def test_it_fills_in(llada):
    text = torch.tensor([[3, MASK, 4, MASK, MASK, 5, 9, 2, MASK, 6]])
    output = call(llada, {"input_ids": text}, {"infill": True, "block_length": 2, "decoder": "fixed"})
    kept = text != MASK
    assert torch.equal(output.sequences[kept], text[kept]) and (output.sequences != MASK).all()
    assert output.num_forwards.tolist() == [4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "credit"}, "`decoder` is 'credit', which remembers a block by its places, but `schedule`"),
        ({"decoder": "editing"}, "`decoder` is 'editing'"),
        ({"lookahead": True}, "`lookahead` is on, but must be off with `schedule` 'sliding'"),
        ({"attention": "block_causal", "cache_policy": "none"}, "needs bidirectional attention"),
        ({"schedule_config": {"max_block_length": 4}, "block_length": 8}, "at least `block_length`, 8"),
    ],
)
def test_what_cannot_work_says_so(llada, options, message):
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=message):
        call(llada, {"input_ids": torch.tensor([[3]])}, {"decoder": "fixed", "max_new_tokens": 8, **options})
    assert not shapes
