"""Blocks that begin with a seed step, and their sub-blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, PAD, Scripted, counted_forwards, padded, row_of_logits
from probes import BLOCK_DECODERS, BLOCK_POLICIES, answer, block_cases
from promises import compare, same

from dllm_generate.canvas import Canvas
from dllm_generate.decoders.editing import EditingDecoder
from dllm_generate.layout import Layout
from dllm_generate.schedules.seeded import SeededSchedule

SEEDED = {"attention": "block_causal", "logits_shift": True, "schedule": "seeded"}
# Of 8 positions: shorter than a block, a block, two blocks, and a block and a half.
PROMPTS = [[5, 1, 2], [3] * 8, [4] * 16, [6] * 12]
EVERYWHERE = {"cache_policy": "none"}, {"cache_policy": "block"}


def options(part=None, **more):
    values = {**SEEDED, "block_length": 8, "schedule_config": {"prompt_is_one_block": False, "sub_block_length": part}}
    return {**values, "decoder": "fixed", "eos_token_id": MASK, "return_dict_in_generate": True, **more}


def walked(prompts, new_tokens, part, one_block=False, length=8):
    """For each row: the open positions of every step that commits all that it may, and whether it sees them."""
    canvas = Canvas.build(
        **padded(prompts), new_tokens=new_tokens, mask_token_id=MASK, fill_token_id=PAD,
        layout=Layout(length, one_block),
    )  # fmt: skip
    schedule, seen = SeededSchedule(length, sub_block_length=part), [[] for _ in prompts]
    while not canvas.finished.all():
        blocks = schedule.active(canvas)
        columns = blocks.columns[:, 0]
        opened = canvas.open.gather(1, columns) & blocks.live
        for row in blocks.ran.nonzero()[:, 0].tolist():
            assert blocks.index[row, 0] == len(seen[row]) < blocks.count[row]
            positions = canvas.position_ids[row, columns[row][opened[row]]].tolist()
            sees = bool((columns[row][opened[row]] < blocks.visible_end[row]).all())
            assert sees == (blocks.visible_end[row] == blocks.end[row])
            seen[row].append((positions, sees))
        canvas.commit(columns, torch.full_like(columns, 9), torch.ones(columns.shape), opened, canvas.forwards)
        schedule.advance(canvas, blocks.ran)
    return seen


def test_seed_and_sub_blocks_from_left_to_right():
    short, whole, double, half = walked(PROMPTS, 12, part=3)
    block = lambda begin: (
        [([begin], False), ([begin + 1, begin + 2], True)]
        + [(list(range(begin + place, min(begin + place + 3, begin + 8))), True) for place in (3, 6)]
    )
    assert short == [([3, 4, 5], True), ([6, 7], True), *block(8)]
    assert whole == [*block(8), *block(16)[:3]]
    assert double == [*block(16), *block(24)[:3]]
    assert half == [([12, 13], True), ([14, 15], True), *block(16)]


def test_without_sub_blocks():
    short, whole, _, half = walked(PROMPTS, 12, part=None)
    assert short == [(list(range(3, 8)), True), ([8], False), (list(range(9, 16)), True)]
    assert whole == [([8], False), (list(range(9, 16)), True), ([16], False), (list(range(17, 24)), True)]
    assert half == [(list(range(12, 16)), True), ([16], False), (list(range(17, 24)), True)]


def test_blocks_from_the_end_of_the_prompt_on():
    for prompt, steps in zip(PROMPTS, walked(PROMPTS, 16, part=4, one_block=True)):
        n = len(prompt)
        assert [positions[0] for positions, _ in steps] == [n, n + 1, n + 4, n + 8, n + 9, n + 12]
        assert [sees for _, sees in steps] == [False, True, True] * 2


@pytest.mark.parametrize("policy", EVERYWHERE)
def test_a_seed_step_sees_nothing_from_its_position_on(llada, policy):
    """One token per step: what the model is shown, and the left-to-right prediction of every first position."""
    with counted_forwards(llada) as shapes:
        output = llada.generate(torch.tensor([PROMPTS[1]]), **options(max_new_tokens=16, **policy))
    widths = [width for _, width in shapes]
    # The first window of a block with the cache holds one column more, which predicts its first position.
    expected = {"none": [8] + [16] * 7 + [16] + [24] * 7, "block": [8] + [9] * 7 + [9] + [9] * 7}
    assert widths == expected[policy["cache_policy"]]
    text = output.sequences[0]
    for first in (8, 16):
        blocks = torch.arange(first) // 8
        mask = (blocks[:, None] >= blocks)[None, None]
        logits = llada(text[None, :first], attention_mask=mask).logits[0, -1]
        assert logits.index_fill(0, torch.tensor([MASK]), float("-inf")).argmax() == text[first]
    assert output.commit_step[0].tolist().index(0) == 0 and output.commit_step[0, 8] == 8


@pytest.mark.parametrize("part", [None, 2, 3, 8])
def test_sub_blocks_are_decoded_in_order(llada, part):
    output = llada.generate(**padded(PROMPTS), **options(part, max_new_tokens=16))
    assert output.num_forwards[1:3].tolist() == [16, 16]
    for prompt, steps in zip(PROMPTS, output.commit_step.tolist()):
        place = [(len(prompt) + i) % 8 for i in range(16)]
        order = [((len(prompt) + i) // 8, 0 if place[i] == 0 else 1 + place[i] // (part or 8)) for i in range(16)]
        assert [unit for _, unit in sorted(zip(steps, order))] == sorted(order)


def test_a_row_ends_with_its_last_token(llada):
    """Nothing is decoded behind `max_new_tokens`: one token behind a block takes one seed step."""
    output = llada.generate(torch.tensor([PROMPTS[1]]), **options(max_new_tokens=1))
    assert output.num_forwards.tolist() == [1]
    output = llada.generate(torch.tensor([PROMPTS[1]]), **options(4, max_new_tokens=4, steps_per_block=1))
    assert output.num_forwards.tolist() == [2]


def test_steps_are_those_of_a_seed_or_a_sub_block(llada):
    # A seed, three positions, four positions. The prompt of three leaves one position of its first sub-block.
    for prompt, new, expected in zip(PROMPTS, (13, 16, 8, 12), (1 + 2 + 5, 5 + 5, 5, 2 + 5)):
        output = llada.generate(torch.tensor([prompt]), **options(4, max_new_tokens=new, steps_per_block=2))
        assert output.num_forwards.tolist() == [expected]
    with pytest.raises(ValueError, match="at least the number of blocks, 8"):
        llada.generate(**padded(PROMPTS), **options(4, max_new_tokens=16, steps=5))


def test_an_eos_ends_a_row():
    rows = [row_of_logits(token, 0.9) for token in (5, 6, 7, 8, EOS, 9)]
    model = Scripted(torch.stack([*rows, *rows[-1:] * 12]), attention="block_causal")
    output = model.generate(
        torch.tensor([[1]]), **{**options(2), "eos_token_id": EOS, "block_length": 4}, max_new_tokens=12
    )
    assert answer(output) == [5, 6, 7, 8, EOS] and output.num_forwards.tolist() == [5]


def seeded_cases(**kwargs):
    parts = st.sampled_from([None, 1, 2, 3, 99])
    return st.tuples(block_cases(**kwargs), parts).map(with_schedule)


def with_schedule(drawn):
    case, part = drawn
    case.options |= SEEDED
    case.options["schedule_config"] = {**case.options["schedule_config"], "sub_block_length": part}
    # Every seed step and every sub-block takes a step.
    case.options.pop("steps", None)
    return case


@given(seeded_cases(policies=BLOCK_POLICIES[:1]))
@settings(max_examples=100)
def test_the_block_cache_is_exact(llada, case):
    plain = llada.generate(**case.inputs, **case.options)
    same(plain, llada.generate(**case.inputs, **{**case.options, "cache_policy": "block"}))


@given(seeded_cases(), st.sampled_from([None, 2, 3]))
@settings(max_examples=100)
def test_ragged_rows_equal_their_single_run(llada, case, unroll):
    output = llada.generate(**case.inputs, **case.options, unroll_steps=unroll)
    for row in range(len(case.prompts)):
        compare(output, row, llada.generate(**case.single(row), **case.options))


def test_every_decoder(llada):
    for decoder in BLOCK_DECODERS:
        both = [
            llada.generate(**padded(PROMPTS), **{**options(3, max_new_tokens=13, **p), **decoder}) for p in EVERYWHERE
        ]
        same(*both)
        assert not (both[0].sequences[:, 16:] == MASK).any()


@pytest.mark.parametrize("policy", ["none", "block", "sub_block"])
def test_lossless_lookahead(llada, policy):
    for decoder in ({"decoder": "fixed"}, {"decoder": "dream", "steps_per_block": 3}, {"decoder": "threshold"}):
        values = {**options(4, max_new_tokens=19, cache_policy=policy), **decoder}
        plain, ahead = (llada.generate(**padded(PROMPTS), **values, lookahead=on) for on in (None, True))
        assert torch.equal(plain.sequences, ahead.sequences) and torch.equal(plain.commit_step, ahead.commit_step)
        assert (ahead.num_forwards <= plain.num_forwards).all()


def test_a_decoder_that_stays_looks_at_the_sub_block_it_has_filled(llada):
    """The editing decoder goes on behind each sub-block, and is shown no other one meanwhile."""
    seen = []

    class Watching(EditingDecoder):
        def __call__(self, input_ids, scores, **kwargs):
            seen.append(kwargs["state"].block[0].item())
            return super().__call__(input_ids, scores, **kwargs)

    decoder = Watching(threshold=0.4, editing_threshold=0.99, max_post_steps=2)
    llada.generate(torch.tensor([PROMPTS[1]]), **options(4, max_new_tokens=16, decoder=decoder))
    # 0 and 3 are seed steps.
    assert seen == sorted(seen) and set(seen) == set(range(6)) and min(map(seen.count, (1, 2, 4, 5))) > 1


def test_what_it_cannot_serve(llada):
    with pytest.raises(ValueError, match="'seeded', which needs shifted logits"):
        llada.generate(torch.tensor([[5]]), **options(logits_shift=False))
    with pytest.raises(ValueError, match="'seeded', which needs block-causal attention"):
        llada.generate(torch.tensor([[5]]), **options(attention="bidirectional"))
    for value in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="`sub_block_length` is"):
            SeededSchedule(8, sub_block_length=value)
