"""Where blocks begin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, PAD, counted_forwards, padded

from dllm_generate.canvas import Canvas
from dllm_generate.schedules.blockwise import BlockwiseSchedule


def block_positions(align, prompts, new_tokens, length, side="left"):
    """Position ids of all blocks of every row, one block after the other committed."""
    canvas = Canvas.build(**padded(prompts, side), new_tokens=new_tokens, mask_token_id=MASK, fill_token_id=PAD)
    schedule, seen = BlockwiseSchedule(length, align=align), [[] for _ in prompts]
    while not canvas.finished.all():
        blocks = schedule.active(canvas)
        columns = blocks.columns[:, 0]
        for row, is_live in enumerate(blocks.live[:, 0].tolist()):
            if is_live:
                real = columns[row][columns[row] > 0]
                assert int(blocks.index[row, 0]) == len(seen[row])
                assert [int(blocks.start[row]), int(blocks.end[row])] == [int(real[0]), int(real[-1]) + 1]
                seen[row].append(canvas.position_ids[row, real].tolist())
        chosen = canvas.open.gather(1, columns) & blocks.live[:, 0, None]
        step = torch.zeros(len(prompts), dtype=torch.long)
        canvas.commit(columns, torch.ones_like(columns), torch.ones(columns.shape), chosen, step)
        schedule.advance(canvas, blocks.ran)
    assert blocks.count.tolist() == [len(blocks_) for blocks_ in seen]
    return seen


def spans(positions):
    return [(block[0], block[-1] + 1) for block in positions]


@pytest.mark.parametrize(
    ("align", "expected"),
    [
        ("prompt", [[(2, 6), (6, 10), (10, 12)], [(5, 9), (9, 13), (13, 15)]]),
        ("position", [[(0, 4), (4, 8), (8, 12)], [(4, 8), (8, 12), (12, 15)]]),
        ("end", [[(0, 4), (4, 8), (8, 12)], [(3, 7), (7, 11), (11, 15)]]),
    ],
)
def test_blocks(align, expected):
    for side in ("left", "right"):
        rows = block_positions(align, [[1, 2], [1, 2, 3, 4, 5]], 10, 4, side)
        assert [spans(row) for row in rows] == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 13), st.integers(1, 20))
@settings(max_examples=60)
def test_blocks_cover_the_answer(lengths, new_tokens, length):
    prompts = [list(range(1, n + 1)) for n in lengths]
    for align in ("prompt", "position", "end"):
        for prompt, blocks in zip(prompts, block_positions(align, prompts, new_tokens, length)):
            cells = [position for block in blocks for position in block]
            first, end = len(prompt), len(prompt) + new_tokens
            assert cells == list(range(cells[0], end)) and cells[0] <= first
            starts = [block[0] for block in blocks]
            if align == "prompt":
                assert cells[0] == first
            if align == "position":
                assert all(start % length == 0 for start in starts)
            if align == "end":
                assert all((end - start) % length == 0 or start == 0 for start in starts)


def test_the_window_of_a_block_that_holds_prompt(llada):
    with counted_forwards(llada) as shapes:
        llada.generate(
            torch.tensor([[3, 1, 4, 1, 5]]),
            max_new_tokens=4,
            block_length=4,
            schedule_config={"align": "position"},
            cache_policy="dual",
            eos_token_id=MASK,
        )
    assert [width for _, width in shapes] == [9, 4, 4, 9]


@pytest.mark.parametrize("align", ["prompt", "position", "end"])
def test_steps_bound_the_steps_of_every_row(llada, align):
    """Where fewer steps than blocks are asked for, the call is refused before the first forward."""
    prompts, options = [[3], [3, 1, 4], [3, 1, 4, 1]], {"max_new_tokens": 10, "block_length": 4, "eos_token_id": MASK}
    canvas = Canvas.build(**padded(prompts), new_tokens=10, mask_token_id=MASK, fill_token_id=PAD)
    counts = BlockwiseSchedule(4, align=align).active(canvas).count.tolist()
    assert max(counts) == {"prompt": 3, "position": 4, "end": 3}[align]
    options = {**options, "schedule_config": {"align": align}, "return_dict_in_generate": True}
    for steps in range(max(counts), 11):
        output = llada.generate(**padded(prompts), steps=steps, **options)
        assert output.num_forwards.max() <= steps
        singles = [llada.generate(torch.tensor([row]), steps=steps, **options) for row in prompts]
        assert [int(single.num_forwards) for single in singles] == output.num_forwards.tolist()
    for steps in range(1, max(counts)):
        with (
            counted_forwards(llada) as shapes,
            pytest.raises(ValueError, match=f"at least the number of blocks, {max(counts)}"),
        ):
            llada.generate(**padded(prompts), steps=steps, **options)
        assert not shapes


def test_infilling_takes_fewer_steps_than_there_are_blocks(llada):
    """Blocks of fixed text need none."""
    ids = torch.tensor([[3, MASK, *[1] * 9, MASK]])
    output = llada.generate(ids, infill=True, steps=2, block_length=2, return_dict_in_generate=True)
    assert output.num_forwards.tolist() == [2]


def test_bad_value():
    with pytest.raises(ValueError, match="`align` is 'left'"):
        BlockwiseSchedule(align="left")
