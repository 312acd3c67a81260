"""Where the blocks of a block-causal model lie, and what of them is returned."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, PAD, Scripted, padded, row_of_logits, tiny_llada
from probes import BLOCK_CAUSAL, answer

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.canvas import Canvas
from dllm_generate.families import Family
from dllm_generate.layout import Layout
from dllm_generate.schedules.block_diffusion import BlockDiffusionSchedule

PROMPTS = [[5], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]


def canvas_of(inputs, new_tokens=7, length=4, one_block=False):
    layout = Layout(length, one_block)
    return Canvas.build(
        inputs["input_ids"], inputs["attention_mask"], new_tokens=new_tokens, mask_token_id=MASK, fill_token_id=PAD,
        eos_token_ids=(EOS,), layout=layout,
    )  # fmt: skip


def walked(canvas, length=4):
    """For each row: the positions of every block, until all is committed."""
    schedule, seen = BlockDiffusionSchedule(length), [[] for _ in canvas.row]
    while not canvas.finished.all():
        blocks = schedule.active(canvas)
        columns = blocks.columns[:, 0]
        opened = canvas.open.gather(1, columns) & blocks.live
        for row in blocks.ran.nonzero()[:, 0].tolist():
            assert blocks.index[row, 0] == len(seen[row]) < blocks.count[row]
            assert blocks.end[row] == blocks.visible_end[row] == columns[row, -1] + 1
            positions = canvas.position_ids[row, columns[row]][columns[row] > 0]
            seen[row].append((positions.tolist(), canvas.position_ids[row, columns[row]][opened[row]].tolist()))
        canvas.commit(columns, torch.full_like(columns, 9), torch.ones(columns.shape), opened, canvas.forwards)
        schedule.advance(canvas, blocks.ran)
    return seen


def spans(*bounds):
    return [list(range(begin, end)) for begin, end in zip(bounds, bounds[1:])]


def test_blocks_from_the_first_token_on():
    """Of rows with 1, 4 and 6 prompt tokens: shorter than a block, a block, and a block and a half."""
    canvas = canvas_of(padded(PROMPTS))
    assert (canvas.end - canvas.limit).tolist() == [0, 1, 3]
    first, second, third = walked(canvas)
    assert [positions for positions, _ in first] == spans(0, 4, 8)
    assert [positions for positions, _ in second] == spans(4, 8, 12)
    assert [positions for positions, _ in third] == spans(4, 8, 12, 16)
    assert [opened for _, opened in first] == spans(1, 4, 8)
    assert [opened for _, opened in third] == spans(6, 8, 12, 16)


def test_blocks_from_the_end_of_the_prompt_on():
    canvas = canvas_of(padded(PROMPTS), one_block=True)
    assert (canvas.end - canvas.limit).tolist() == [1, 1, 1]
    for prompt, blocks in zip(PROMPTS, walked(canvas)):
        n = len(prompt)
        assert [positions for positions, _ in blocks] == [opened for _, opened in blocks] == spans(n, n + 4, n + 8)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 6), st.booleans(),
    st.sampled_from(["left", "right"]),
)  # fmt: skip
@settings(max_examples=60)
def test_every_open_position_is_in_one_block(lengths, new_tokens, length, one_block, side):
    canvas = canvas_of(padded([[7] * n for n in lengths], side), new_tokens, length, one_block)
    surplus = (canvas.end - canvas.limit).tolist()
    for n, more, blocks in zip(lengths, surplus, walked(canvas, length)):
        assert sum((opened for _, opened in blocks), []) == list(range(n, n + new_tokens + more))
        assert more < length and (new_tokens + more + (0 if one_block else n)) % length == 0
        first = n if one_block else n - n % length
        assert [positions for positions, _ in blocks] == spans(*range(first, n + new_tokens + more + 1, length))


def test_holes_do_not_count():
    inputs = {
        "input_ids": torch.tensor([[1, PAD, 2, 3, PAD, 4, 5, PAD, 6]]),
        "attention_mask": torch.tensor([[1, 0, 1, 1, 0, 1, 1, 0, 1]]),
    }
    canvas = canvas_of(inputs)
    real = canvas.real[0]
    assert canvas.block_ids[0, real].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert canvas.block_ids[0, 0] > canvas.block_ids[0, 1:].max()
    assert [opened for _, opened in walked(canvas)[0]] == spans(6, 8, 12, 16)


def test_the_prompt_is_block_0():
    canvas = canvas_of(padded(PROMPTS), one_block=True)
    for row, prompt in enumerate(PROMPTS):
        blocks = canvas.block_ids[row, canvas.real[row]].tolist()
        assert blocks == [0] * len(prompt) + [1] * 4 + [2] * 4


def model_of(tokens):
    """Writes one token per position behind a prompt of one token, the left-most first, and EOS from there on."""

    def script(call):
        rows = [row_of_logits(0, 0.5)] + [row_of_logits(t, 0.9 - 0.05 * i) for i, t in enumerate(tokens)]
        return torch.stack([*rows, row_of_logits(EOS, 0.2)])[call.position_ids.clamp(max=len(rows))]

    return Scripted(script, attention="block_causal")


def generate(model, prompt=(1,), **options):
    values = {**BLOCK_CAUSAL, "block_length": 4, "schedule_config": {"prompt_is_one_block": False}}
    options = {**values, "decoder": "fixed", "return_dict_in_generate": True, **options}
    return model.generate(torch.tensor([prompt]), **options)


@pytest.mark.parametrize("policy", ["none", "block"])
def test_surplus_is_decoded_but_neither_returned_nor_counted(policy):
    """Two new tokens in a block of which one position is prompt: the last one is surplus, and an EOS there is none."""
    output = generate(model_of([5, 6, EOS]), max_new_tokens=2, cache_policy=policy)
    assert output.sequences.tolist() == [[1, 5, 6]] and output.finish_reason == ["length"]
    assert output.commit_step.tolist() == [[0, 1]] and output.confidence.shape == (1, 2)
    assert output.num_forwards.tolist() == [3]
    assert output.tokens_per_forward.tolist() == pytest.approx([2 / 3])


@pytest.mark.parametrize(("early_stop", "forwards"), [(True, 2), (False, 3)])
def test_an_eos_ends_the_row_at_once_or_with_its_block(early_stop, forwards):
    model = model_of([5, EOS, 7, 8, 9, 9, 9])
    schedule = {"prompt_is_one_block": False, "early_stop": early_stop}
    output = generate(model, max_new_tokens=7, schedule_config=schedule)
    assert answer(output) == [5, EOS] and output.finish_reason == ["eos"]
    assert output.num_forwards.tolist() == [forwards]
    assert output.tokens_per_forward.tolist() == pytest.approx([1 / forwards])


def test_what_the_model_sees_ends_with_the_block():
    model = model_of([5] * 7)
    generate(model, max_new_tokens=7, cache_policy="none")
    assert [call.input_ids.shape[1] for call in model.calls] == [4] * 3 + [8] * 4


def test_a_block_sees_none_behind_it():
    """The same canvas, block-causal: what is said in a block does not depend on how much is asked for."""
    model = tiny_llada()
    for one_block in (True, False):
        long, short = (
            generate(model, (3, 1, 4), max_new_tokens=n, schedule_config={"prompt_is_one_block": one_block})
            for n in (13, 5)
        )
        assert torch.equal(long.sequences[:, :8], short.sequences)
        torch.testing.assert_close(long.confidence[:, :5], short.confidence)


def test_blocks_of_a_known_family_lie_where_they_are():
    family = Family("known", 63, attention="block_causal", block_length=4, prompt_is_one_block=False)
    config = DiffusionGenerationConfig()
    for fits in (BlockDiffusionSchedule(4), BlockDiffusionSchedule(4, prompt_is_one_block=False)):
        fits.validate(family, config)
        assert fits.layout(family) == Layout(4, False)
    with pytest.raises(ValueError, match="`prompt_is_one_block` is True, but must be False for the family 'known'"):
        BlockDiffusionSchedule(4, prompt_is_one_block=True).validate(family, config)
    with pytest.raises(ValueError, match="`block_length` is 8, but must be 4 for the family 'known'"):
        BlockDiffusionSchedule(8).validate(family, config)
    by_hand = Family("custom", 63, attention="block_causal")
    assert BlockDiffusionSchedule(8).layout(by_hand) == Layout(8, True)
    assert BlockDiffusionSchedule(8, prompt_is_one_block=False).layout(by_hand) == Layout(8, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "block_diffusion"}, "needs block-causal attention, but the family 'llada'"),
        ({"attention": "block_causal", "schedule": "blockwise"}, "needs bidirectional attention"),
        ({**BLOCK_CAUSAL, "infill": True}, "`infill` is True, but must be off with `schedule` 'block_diffusion'"),
        ({**BLOCK_CAUSAL, "schedule_config": {"prompt_is_one_block": 1}}, "must be None or a bool"),
        ({**BLOCK_CAUSAL, "block_length": 0}, "`block_length` is 0, but must be an int > 0"),
        (
            {**BLOCK_CAUSAL, "guidance_scale": 2.0, "negative_prompt_ids": torch.tensor([[1]])},
            "`negative_prompt_ids` is given, but must be None for block-causal attention",
        ),
    ],
)
def test_what_cannot_work_says_so(llada, options, message):
    with pytest.raises(ValueError, match=message):
        llada.generate(torch.tensor([[3, MASK, 1]]), max_new_tokens=4, **options)
