"""Infilling: open positions anywhere, fixed text bit-identical, no EOS in front of fixed text."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, PAD, Scripted, padded, table
from probes import COMMON, DECODERS, POLICIES
from transformers import TextStreamer

CALL = {"infill": True, "return_dict_in_generate": True}
# Never masks alone: all positions would be equal, and rounding would decide their order.
cells = st.lists(st.sampled_from([MASK, MASK, 1, 2, 3, EOS]), max_size=6)
templates = st.tuples(cells, st.integers(1, 9), cells).map(lambda parts: [*parts[0], parts[1], *parts[2]])


@given(
    st.lists(templates, min_size=1, max_size=3),
    st.sampled_from(DECODERS),
    st.sampled_from(POLICIES),
    st.sampled_from([1, 3, 4, 64]),
    st.sampled_from(["left", "right"]),
    st.sampled_from([EOS, COMMON]),
)
@settings(max_examples=80)
def test_fixed_text_stays_and_rows_are_their_single_runs(llada, rows, decoder, policy, length, side, ends):
    options = {**decoder, **policy, **CALL, "block_length": length, "eos_token_id": ends}
    ends = ends if isinstance(ends, list) else [ends]
    output = llada.generate(**padded(rows, side), **options)
    for row, template in enumerate(rows):
        filled = output.sequences[row, -len(template) :].tolist()
        alone = llada.generate(torch.tensor([template]), **options)
        assert filled == alone.sequences[0].tolist()
        assert output.num_forwards[row] == alone.num_forwards[0]
        last_fixed = max((i for i, token in enumerate(template) if token != MASK), default=-1)
        ended = next((i for i, t in enumerate(filled) if t in ends and i > last_fixed), len(filled))
        for place, (token, before) in enumerate(zip(filled, template)):
            if before != MASK:
                assert token == before
            elif place < last_fixed:
                assert token not in {MASK, PAD, *ends}
            else:
                assert token != MASK and (place <= ended or token == PAD)


def test_nothing_to_fill(llada):
    """A row without open positions comes back as it is, with no forward; the others go on."""
    output = llada.generate(**padded([[1, 2, 3], [4, MASK, 6]]), **CALL)
    assert output.sequences[0].tolist() == [1, 2, 3]
    assert output.num_forwards.tolist() == [0, 1]
    assert llada.generate(torch.tensor([[1, 2]]), **CALL).sequences.tolist() == [[1, 2]]


@pytest.mark.parametrize("decoder", ["fixed", "threshold", "factor"])
def test_eos_between_fixed_text_is_not_predicted(decoder):
    """A model that wants EOS in the middle gets its second choice there, and its EOS behind the last fixed token."""
    wanted = torch.stack([table((EOS, 0.9))[1]] * 9)
    wanted[:, 9] = wanted[:, EOS] - 0.5
    model = Scripted(wanted)
    output = model.generate(torch.tensor([[1, 2, MASK, MASK, 7, 8, MASK, MASK]]), decoder=decoder, **CALL)
    assert output.sequences.tolist() == [[1, 2, 9, 9, 7, 8, EOS, PAD]]
    assert output.finish_reason == ["eos"]


def test_gaps_of_one_block_are_skipped():
    """Fixed text between open positions costs no step; the next block is the next one with an open position."""
    model = Scripted(table(*[(5, 0.99)] * 12, prompt=1))
    model.generate(torch.tensor([[1, MASK] + [2] * 8 + [MASK, MASK]]), decoder="threshold", block_length=2, **CALL)
    assert len(model.calls) == 3


def test_what_infilling_excludes(llada, tokenizer):
    ids = torch.tensor([[1, MASK, 2]])
    with pytest.raises(ValueError, match="`negative_prompt_ids`.*`infill`"):
        llada.generate(ids, **CALL, guidance_scale=2.0, negative_prompt_ids=ids)
    with pytest.raises(ValueError, match="`streamer`.*`infill`"):
        llada.generate(ids, **CALL, streamer=TextStreamer(tokenizer))


def test_lengths_mean_nothing_here(llada):
    ids = torch.tensor([[1, MASK, 2]])
    with pytest.warns(UserWarning, match="`max_new_tokens` has no effect with `infill`"):
        assert llada.generate(ids, **CALL, max_new_tokens=9).sequences.shape == (1, 3)


def test_without_infill_the_mask_id_is_text(llada):
    ids = torch.tensor([[1, MASK, MASK, 2]])
    assert torch.equal(llada.generate(ids, max_new_tokens=3)[:, :4], ids)
