"""A row of a batch is its single run, the prompt stays, and lengths are exact: over decoder x policy x shapes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, PAD
from probes import COMMITTING, DECODERS, GRID, Recorder, answer, cases
from promises import check_early_stop, check_rows, compare


@given(cases())
@settings(max_examples=150)
def test_a_row_is_its_single_run(llada, case):
    output = check_rows(llada, case)
    assert output.sequences.shape[1] == max(map(len, case.prompts)) + max(
        len(answer(output, row)) for row in range(len(case.prompts))
    )


def test_every_decoder_with_every_policy(llada):
    prompts = {
        "input_ids": torch.tensor([[PAD, PAD, 5], [3, 1, 4]]),
        "attention_mask": torch.tensor([[0, 0, 1], [1, 1, 1]]),
    }
    for decoder in DECODERS:
        for policy in GRID:
            options = {**decoder, **policy, "max_new_tokens": 9, "block_length": 4, "return_dict_in_generate": True}
            output = llada.generate(**prompts, **options)
            compare(output, 0, llada.generate(torch.tensor([[5]]), **options))
            compare(output, 1, llada.generate(torch.tensor([[3, 1, 4]]), **options))


@given(cases(decoders=COMMITTING), st.booleans())
@settings(max_examples=60)
def test_every_step_of_a_row_commits(llada, case, early_stop):
    schedule = case.schedule(Recorder, early_stop=early_stop)
    output = llada.generate(**case.inputs, **case.options, schedule=schedule)
    left = dict.fromkeys(range(len(case.prompts)), case.options["max_new_tokens"])
    ran_in = dict.fromkeys(left, 0)
    for rows, ran, still_open in schedule.log:
        for row, has_run, count in zip(rows, ran, still_open):
            assert count < left[row] if has_run else count == left[row]
            left[row] = count
            ran_in[row] += has_run
    assert [ran_in[row] for row in left] == output.num_forwards.tolist()
    assert max(ran_in.values()) <= case.options["max_new_tokens"]
    if not early_stop:
        assert not any(left.values())


@given(cases(max_rows=2))
@settings(max_examples=30)
def test_early_stop_saves_forwards_and_changes_no_text(llada, case):
    check_early_stop(llada, case)


@given(cases(max_rows=1))
@settings(max_examples=20)
def test_inputs_of_every_form(llada, case):
    """1-D ids, ids by position or by name, a mask of ones or none, integer or bool: the same call."""
    ids = torch.tensor(case.prompts)
    expected = llada.generate(ids, **case.options).sequences
    ones = torch.ones_like(ids)
    for inputs in (
        {"inputs": ids[0]},
        {"input_ids": ids},
        {"input_ids": ids.int()},
        {"inputs": ids, "attention_mask": ones},
        {"inputs": ids[0], "attention_mask": ones[0]},
        {"inputs": ids, "attention_mask": ones.bool()},
    ):
        assert torch.equal(llada.generate(**inputs, **case.options).sequences, expected)


def test_padding_without_a_mask(llada):
    """As in transformers, pad tokens at the ends of a row are padding where no mask says otherwise."""
    options = {"max_new_tokens": 6, "block_length": 4, "decoder": "threshold", "threshold": 0.4}
    alone = llada.generate(torch.tensor([[7, PAD, 9]]), **options)[:, 3:]
    for row in ([PAD, PAD, 7, PAD, 9], [7, PAD, 9, PAD, PAD]):
        batch = llada.generate(torch.tensor([row, [1, 2, 3, 4, 5]]), **options)
        assert torch.equal(batch[:1, 5:], alone)


def test_decisions_are_not_decided_by_rounding(llada):
    """The tiny model is fit for comparisons of tokens: no prediction and no order is a near tie."""
    torch.manual_seed(0)
    with torch.no_grad():
        logits = llada(torch.randint(0, MASK, (50, 12))).logits
    logits[..., MASK] = -torch.inf
    top = logits.topk(2, -1).values
    assert (top[..., 0] - top[..., 1]).min() > 1e-4
    order = logits.softmax(-1).amax(-1).sort(-1).values
    assert (order[:, 1:] - order[:, :-1]).quantile(0.01) > 1e-4
    assert order.median() > 0.2 and order.max() < 0.999
