"""What generate returns: shapes, counts and reasons, and what they mean."""

import pytest
import torch
from hypothesis import given, settings
from models import EOS, MASK, PAD, Scripted, padded, table
from probes import answer, cases
from transformers.utils import ModelOutput

from dllm_generate import DiffusionGenerateOutput

IDS = torch.tensor([[1]])


def test_ids_or_a_model_output():
    model = Scripted(table(*[(5, 0.9)] * 4))
    ids = model.generate(IDS, max_new_tokens=3)
    output = model.generate(IDS, max_new_tokens=3, return_dict_in_generate=True)
    assert type(ids) is torch.Tensor and ids.dtype == torch.long
    assert isinstance(output, DiffusionGenerateOutput) and isinstance(output, ModelOutput)
    assert torch.equal(output.sequences, ids) and output["sequences"] is output[0]
    assert "scores" not in output


def test_order_and_confidence_of_every_position():
    """Values at the step in which the position was fixed, for a model that is known cell by cell."""
    model = Scripted(table((5, 0.6), (6, 0.9), (7, 0.7), (8, 0.8)))
    output = model.generate(IDS, max_new_tokens=4, return_dict_in_generate=True, output_scores=True)
    assert output.commit_step.tolist() == [[3, 0, 2, 1]]
    torch.testing.assert_close(output.confidence, torch.tensor([[0.6, 0.9, 0.7, 0.8]]), atol=1e-4, rtol=0)
    assert torch.equal(output.scores, output.confidence)
    assert output.num_forwards.tolist() == [4] and output.tokens_per_forward.tolist() == [1.0]
    assert output.finish_reason == ["length"]


@given(cases())
@settings(max_examples=40)
def test_shapes_and_sums(llada, case):
    output = llada.generate(**case.inputs, **case.options, output_scores=True)
    rows, width = case.inputs["input_ids"].shape
    generated = output.sequences.shape[1] - width
    assert 1 <= generated <= case.options["max_new_tokens"]
    for values, dtype in (
        (output.commit_step, torch.long),
        (output.confidence, torch.float32),
        (output.scores, torch.float32),
    ):
        assert values.shape == (rows, generated) and values.dtype == dtype
    assert output.num_forwards.shape == output.tokens_per_forward.shape == (rows,)
    assert len(output.finish_reason) == rows
    fixed = output.commit_step >= 0
    assert ((output.confidence > 0) == fixed).all() and (output.confidence <= 1).all()
    text = output.tokens_per_forward * output.num_forwards
    ends = torch.tensor([reason == "eos" for reason in output.finish_reason])
    torch.testing.assert_close(text, (fixed.sum(1) - ends.long()).float())


def test_one_token_and_one_token_of_prompt():
    output = Scripted(table((5, 0.9))).generate(IDS, max_new_tokens=1, return_dict_in_generate=True, output_scores=True)
    assert output.sequences.tolist() == [[1, 5]] and output.scores.shape == (1, 1)


def test_trimmed_to_the_longest_row():
    cells = [(5, 0.9), (EOS, 0.9)] + [(6, 0.9)] * 3 + [(EOS, 0.9)] * 8
    output = Scripted(table(*cells)).generate(**padded([[1], [1] * 4]), max_new_tokens=9, return_dict_in_generate=True)
    assert output.sequences.tolist() == [[PAD] * 3 + [1, 5, EOS, PAD], [1, 1, 1, 1, 6, 6, EOS]]
    assert output.commit_step[0, 2] == -1 and output.confidence[0, 2] == 0


@pytest.mark.parametrize(("pad", "fill"), [(PAD, PAD), (None, EOS), (7, 7)])
def test_pad_fills_what_is_no_text(pad, fill):
    model = Scripted(table((EOS, 0.9), *[(6, 0.9)] * 8))
    model.generation_config.pad_token_id = pad
    inputs = padded([[1], [1, 1]], pad=0)
    assert model.generate(**inputs, max_new_tokens=3).tolist()[0][1:] == [1, EOS, fill, fill]


def test_guided_forwards_count_once():
    model = Scripted(table(*[(5, 0.9)] * 8))
    output = model.generate(IDS, max_new_tokens=4, guidance_scale=2.0, return_dict_in_generate=True)
    assert output.num_forwards.tolist() == [4] == [len(model.calls)]


def test_infilling_counts_what_it_filled():
    model = Scripted(table(*[(5, 0.9)] * 8))
    ids = torch.tensor([[1, MASK, 2, MASK, 3]])
    output = model.generate(ids, infill=True, decoder="threshold", threshold=0.5, return_dict_in_generate=True)
    assert output.commit_step.tolist() == [[-1, 0, -1, 0, -1]]
    assert output.tokens_per_forward.tolist() == [2.0] and answer(output) == [5, 5]
