"""DiffusionCache as a transformers cache, and the windows of the policies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, PAD, padded, tiny_llada
from transformers import Cache

from dllm_generate import POLICIES, DiffusionCache
from dllm_generate.attention import attention_mask
from dllm_generate.caches.base import CacheState
from dllm_generate.canvas import Canvas
from dllm_generate.schedules.blockwise import BlockwiseSchedule

ROWS, WIDTH = 3, 12


def states(columns):
    """Keys `(n, 1, W, 1)` that say their column, values the negative of it."""
    keys = columns[:, None, :, None].float()
    return keys, -keys


def test_a_window_per_row():
    cache = DiffusionCache(ROWS, WIDTH)
    assert isinstance(cache, Cache)
    columns = torch.tensor([[1, 2, 3], [4, 5, 0], [9, 10, 11]])
    cache.seek(columns)
    keys, values = cache.update(*states(columns + 100), 0)
    assert keys.shape == (ROWS, 1, WIDTH, 1) and torch.equal(values, -keys)
    for row in range(ROWS):
        written = [int(c) for c in columns[row] if c]
        expected = [100.0 + c if c in written else 0.0 for c in range(1, WIDTH)]
        assert keys[row, 0, 1:, 0].tolist() == expected


@given(
    st.lists(st.integers(1, WIDTH - 1), min_size=1, max_size=5, unique=True),
    st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
)
@settings(max_examples=40)
def test_some_rows_only(columns, rows):
    """The others keep what they have, and the forward sees its own rows."""
    cache = DiffusionCache(ROWS, WIDTH)
    everything = torch.arange(WIDTH).expand(ROWS, -1)
    cache.seek(everything)
    cache.update(*states(everything), 0)
    window = torch.tensor(columns).expand(len(rows), -1)
    cache.seek(window, torch.tensor(rows))
    seen, _ = cache.update(*states(window + 50), 0)
    kept = cache.layers[0].keys[:, 0, :, 0]
    for row in range(ROWS):
        new = [c + 50.0 if row in rows and c in columns else float(c) for c in range(WIDTH)]
        assert kept[row].tolist() == new
    assert torch.equal(seen[:, 0, :, 0], kept[torch.tensor(rows)])


def test_storage():
    assert [DiffusionCache(1, n, is_static=True).slots for n in (1, 64, 65)] == [64, 64, 128]
    cache = DiffusionCache(2, 5)
    columns = torch.tensor([[1, 2], [3, 4]])
    cache.seek(columns)
    cache.update(*states(columns), 0)
    cache.reserve(9)
    cache.seek(columns + 4)
    keys, _ = cache.update(*states(columns + 4), 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 1, 2, 0, 0, 5, 6, 0, 0], [0, 0, 0, 3, 4, 0, 0, 7, 8]]
    cache.batch_select_indices(torch.tensor([1]))
    assert cache.layers[0].keys.shape[0] == cache.rows_in_batch == 1
    assert cache.get_seq_length() == 9


@pytest.mark.parametrize("static", [False, True])
def test_unused_slots_are_never_read(static):
    """Garbage in slots that nobody wrote, and in the scratch column, changes no hidden state."""
    model = tiny_llada()
    ids = torch.tensor([[3, 1, 4, 1], [1, 5, 9, 2]])
    columns = torch.tensor([[1, 2, 3, 4], [0, 0, 1, 2]])
    slots = 64 if static else 8
    visible = torch.zeros(2, slots, dtype=torch.bool)
    visible[0, 1:5] = visible[1, 1:3] = True
    outputs = []
    for garbage in (0.0, 1e4):
        cache = DiffusionCache(2, 8, static)
        for _ in range(2):
            cache.seek(columns)
            mask = attention_mask(visible, implementation="sdpa", dtype=torch.float32)
            hidden = model.model(ids, position_ids=columns, attention_mask=mask, cache=cache, use_cache=True)[0]
            for layer in cache.layers:
                for states_ in (layer.keys, layer.values):
                    states_.masked_fill_(~visible[:, None, :, None], garbage)
        outputs.append(hidden[columns > 0])
    assert torch.equal(*outputs)
    alone = model.model(ids[1:, 2:], position_ids=columns[1:, 2:])[0]
    torch.testing.assert_close(outputs[0][-2:], alone[0], atol=1e-5, rtol=1e-4)


def setup(policy, **config):
    canvas = Canvas.build(**padded([[5], [1, 2, 3]]), new_tokens=9, mask_token_id=MASK, fill_token_id=PAD)
    return canvas, BlockwiseSchedule(4), POLICIES.build(policy, config), CacheState.begin(canvas)


WINDOWS = {"none": (None, 13), "prefix": (4, 13), "dual": (4, 8), "vicinity": (2, 10)}


@pytest.mark.parametrize("policy", WINDOWS)
def test_windows(policy):
    """Columns 1-3 are the prompts, 4-7 the first block, 13 is the end."""
    config = {"prefix_look": 2, "after_look": 2} if policy == "vicinity" else {}
    canvas, schedule, part, state = setup(policy, **config)
    blocks = schedule.active(canvas)
    first = part.plan(canvas, blocks, state)
    assert first.refresh.all() and first.lo.tolist() == [3, 1] and first.hi.tolist() == [13, 13]
    state.advance(first, blocks)
    second = part.plan(canvas, blocks, state)
    lo, hi = WINDOWS[policy]
    starts = [3, 1] if lo is None else [max(lo, 3), lo] if policy == "vicinity" else [lo, lo]
    assert second.lo.tolist() == starts and second.hi.tolist() == [hi] * 2
    assert second.refresh.all() == (policy == "none")


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_refresh_interval_counts_steps_of_the_row(interval):
    """From the last refresh on, and only in steps in which the row ran."""
    canvas, schedule, part, state = setup("dual", refresh_interval=interval)
    refreshes = []
    for step in range(8):
        blocks = schedule.active(canvas)
        blocks.live = torch.tensor([[True], [step % 2 == 0]])
        plan = part.plan(canvas, blocks, state)
        refreshes.append(plan.refresh.tolist())
        state.advance(plan, blocks)
    first, second = zip(*refreshes)
    assert [i for i, r in enumerate(first) if r] == list(range(0, 8, interval))
    ran = [r for step, r in enumerate(second) if step % 2 == 0]
    assert [i for i, r in enumerate(ran) if r] == list(range(0, 4, interval))
