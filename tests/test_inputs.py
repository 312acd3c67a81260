"""Prompts and masks become one canvas: padding on either side, holes, any dtype."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, PAD, counted_forwards, padded

from dllm_generate.canvas import Canvas
from dllm_generate.inputs import check_inputs

prompts = st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=7), min_size=1, max_size=4)


def build(inputs, new_tokens=3, **kwargs):
    return Canvas.build(**inputs, new_tokens=new_tokens, mask_token_id=MASK, fill_token_id=PAD, **kwargs)


@given(prompts)
@settings(max_examples=60)
def test_right_padding_becomes_left_padding(rows):
    left, right = build(padded(rows)), build(padded(rows, side="right"))
    for field in ("input_ids", "real", "position_ids", "open", "start", "end", "origin"):
        assert torch.equal(getattr(left, field), getattr(right, field)), field


@given(prompts, st.integers(1, 5))
@settings(max_examples=60)
def test_the_canvas(rows, new_tokens):
    """Scratch column, padding, prompt, open positions; positions count real cells."""
    canvas = build(padded(rows), new_tokens)
    width = max(map(len, rows))
    assert canvas.width == 1 + width + new_tokens
    for row, prompt in enumerate(rows):
        pad = width - len(prompt)
        assert canvas.input_ids[row, 1 + pad :].tolist() == prompt + [MASK] * new_tokens
        assert canvas.real[row].tolist() == [False] * (1 + pad) + [True] * (len(prompt) + new_tokens)
        assert canvas.position_ids[row, 1 + pad :].tolist() == list(range(len(prompt) + new_tokens))
        assert canvas.open[row].tolist() == [False] * (1 + width) + [True] * new_tokens
        assert (canvas.start[row], canvas.origin[row], canvas.end[row]) == (1 + pad, 1 + width, canvas.width)


@given(st.lists(st.tuples(st.integers(0, 63), st.booleans()), min_size=1, max_size=9))
@settings(max_examples=60)
def test_holes_in_a_mask_stay(cells):
    """A cell that does not count, between two that do, gives no position and is seen by nobody."""
    ids, mask = (torch.tensor([list(column)]) for column in zip(*cells))
    if not mask.any():
        return
    canvas = build({"input_ids": ids, "attention_mask": mask.long()})
    assert canvas.input_ids[canvas.real].tolist() == ids[mask].tolist() + [MASK] * 3
    assert canvas.position_ids[canvas.real].tolist() == list(range(int(mask.sum()) + 3))


@given(st.lists(st.sampled_from([PAD, 1, 2]), min_size=1, max_size=6))
@settings(max_examples=40)
def test_pad_at_the_ends_is_padding_without_a_mask(llada, row):
    ids, kwargs = check_inputs(llada, torch.tensor(row), None, {})
    inside = [place for place, token in enumerate(row) if token != PAD] or [0, len(row) - 1]
    expected = [int(inside[0] <= place <= inside[-1]) for place in range(len(row))]
    assert ids.tolist() == [row] and kwargs["attention_mask"].tolist() == [expected]


def test_no_padding_is_guessed_where_pad_may_be_text(llada):
    for options in ({"pad_token_id": EOS}, {"pad_token_id": 5, "eos_token_id": [4, 5]}):
        _, kwargs = check_inputs(llada, torch.tensor([[5, EOS, 1, EOS, 5]]), None, options)
        assert kwargs["attention_mask"].all()


def test_values_under_the_padding_do_not_matter(llada):
    """Ids of padded cells are read by nobody, even where they are no ids at all."""
    options = {"max_new_tokens": 6, "cache_policy": "dual", "block_length": 4}
    inputs = padded([[5, 6], [1, 2, 3, 4]])
    expected = llada.generate(**inputs, **options)[:, 4:]
    inputs["input_ids"][0, :2] = torch.tensor([MASK, 0])
    assert torch.equal(llada.generate(**inputs, **options)[:, 4:], expected)


def test_a_prompt_of_mask_tokens_is_text(llada):
    """What is open is never derived from the ids."""
    ids = torch.full((1, 3), MASK)
    with counted_forwards(llada) as shapes:
        output = llada.generate(ids, max_new_tokens=2, eos_token_id=None)
    assert output[:, :3].equal(ids) and MASK not in output[0, 3:] and len(shapes) == 2


def test_inputs_are_not_changed(llada):
    inputs = padded([[5], [1, 2, 3]], side="right")
    copies = {name: value.clone() for name, value in inputs.items()}
    llada.generate(**inputs, max_new_tokens=4)
    assert all(torch.equal(inputs[name], copies[name]) for name in inputs)
