"""Classifier-free guidance: twice the rows, one mix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, Scripted, counted_forwards, padded
from probes import answer, cases

from dllm_generate.canvas import Canvas
from dllm_generate.guidance import Guidance

IDS = torch.tensor([[3, 1, 4, 1, 5]])


@given(cases(max_rows=3), st.sampled_from([0.5, 1.6, 3.0]))
@settings(max_examples=50)
def test_a_guided_row_is_its_single_run(llada, case, scale):
    # Not with scale 0: in a canvas of masks alone all positions are equal, and rounding decides their order.
    output = llada.generate(**case.inputs, **case.options, guidance_scale=scale)
    for row in range(len(case.prompts)):
        alone = llada.generate(**case.single(row), **case.options, guidance_scale=scale)
        assert answer(output, row) == answer(alone)
        assert output.num_forwards[row] == alone.num_forwards[0]


@given(cases(), st.lists(st.integers(0, 59), min_size=1, max_size=12))
@settings(max_examples=40)
def test_a_negative_prompt_of_any_length(llada, case, negative):
    """Shared by the rows, longer or shorter than the prompts: the prompts come back, rows equal their single run."""
    guided = {**case.options, "guidance_scale": 1.8}
    rows = len(case.prompts)
    output = llada.generate(**case.inputs, **guided, negative_prompt_ids=torch.tensor([negative] * rows))
    width = case.inputs["input_ids"].shape[1]
    for row, prompt in enumerate(case.prompts):
        assert output.sequences[row, width - len(prompt) : width].tolist() == prompt
        alone = llada.generate(**case.single(row), **guided, negative_prompt_ids=torch.tensor([negative]))
        assert answer(output, row) == answer(alone)
        assert alone.sequences.shape[1] == len(prompt) + len(answer(alone))


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
@pytest.mark.parametrize("negative", [None, [9, 9], [8, 7, 6, 5, 4, 3, 2]])
def test_one_step_is_the_mix_computed_by_hand(llada, policy, negative):
    """`u + s (c - u)` on raw logits; u from the masked prompt or the negative one, at its own positions."""
    prompt, scale, n = IDS[0].tolist(), 2.5, 4
    conditional = logits_of(llada, prompt + [MASK] * n)[-n:]
    unconditional = logits_of(llada, (negative or [MASK] * len(prompt)) + [MASK] * n)[-n:]
    mixed = unconditional + scale * (conditional - unconditional)
    mixed[:, MASK] = -torch.inf
    output = llada.generate(
        IDS, guidance_scale=scale, max_new_tokens=n, decoder="threshold", threshold=1e-9, cache_policy=policy,
        negative_prompt_ids=None if negative is None else torch.tensor([negative]), eos_token_id=MASK,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert answer(output) == mixed.argmax(-1).tolist()
    torch.testing.assert_close(output.confidence[0], mixed.softmax(-1).amax(-1), atol=1e-5, rtol=1e-4)


def test_scale_one_is_off_and_others_double_the_rows(llada):
    options = {"max_new_tokens": 5, "cache_policy": "dual", "return_dict_in_generate": True}
    plain = llada.generate(IDS, **options)
    for scale, rows in ((1.0, 1), (1, 1), (1.5, 2), (0.0, 2)):
        with counted_forwards(llada) as shapes:
            output = llada.generate(IDS, guidance_scale=scale, **options)
        assert {shape[0] for shape in shapes} == {rows}
        assert len(shapes) == output.num_forwards[0] == 5
        assert torch.equal(output.sequences, plain.sequences) == (rows == 1)


def test_negative_prompts_per_row_and_repeats(llada):
    prompts = padded([[5], [3, 1, 4]])
    negative = padded([[9, 9, 9, 9], [8]])
    options = {"guidance_scale": 2.0, "max_new_tokens": 6, "return_dict_in_generate": True}
    call = {"negative_prompt_ids": negative["input_ids"], "negative_prompt_attention_mask": negative["attention_mask"]}
    output = llada.generate(**prompts, **call, **options)
    for row, (prompt, other) in enumerate((([5], [9, 9, 9, 9]), ([3, 1, 4], [8]))):
        alone = llada.generate(torch.tensor([prompt]), negative_prompt_ids=torch.tensor([other]), **options)
        assert answer(output, row) == answer(alone)
    torch.manual_seed(0)
    rows = llada.generate(**prompts, **call, **options, do_sample=True, num_return_sequences=2)
    assert rows.sequences.shape[0] == 4


def test_what_a_negative_prompt_needs(llada):
    two = torch.tensor([[1], [2]])
    with pytest.raises(
        ValueError, match="`negative_prompt_ids` is .2, 1., but must be of as many rows as the batch has, 1"
    ):
        llada.generate(IDS, guidance_scale=2.0, negative_prompt_ids=two, max_new_tokens=3)
    with pytest.raises(ValueError, match="`negative_prompt_ids` is given, but `guidance_scale` is None"):
        llada.generate(IDS, negative_prompt_ids=IDS, max_new_tokens=3)
    with pytest.raises(ValueError, match="`guidance_scale` is 'x'"):
        llada.generate(IDS, guidance_scale="x", max_new_tokens=3)


def test_bans_and_lengths_hold_with_a_long_negative_prompt():
    """`min_new_tokens` counts from the row's own prompt, not from the wider one."""
    wants_eos = torch.zeros(40, 64)
    wants_eos[:, EOS], wants_eos[:, 9] = 5.0, 4.0
    model = Scripted(wants_eos)
    output = model.generate(
        IDS[:, :1], guidance_scale=1.5, negative_prompt_ids=torch.tensor([[1] * 7]), min_new_tokens=3, max_new_tokens=6
    )
    assert output.tolist() == [[3, 9, 9, 9, EOS]]


def test_merge_and_view():
    canvas = Canvas.build(IDS, None, new_tokens=2, mask_token_id=MASK, fill_token_id=0)
    guidance = Guidance.build(3.0, canvas, MASK, None)
    view = guidance.doubled(canvas)
    assert view.input_ids.tolist() == [[0, 3, 1, 4, 1, 5, MASK, MASK], [0] + [MASK] * 7]
    scores = torch.tensor([[[1.0, 2.0]], [[0.0, 4.0]]])
    assert guidance.merge(scores).tolist() == [[[3.0, -2.0]]]
