"""Bans, biases and penalties at every position, in any order of writing; the rest is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, PAD, Scripted, counted_forwards, padded, row_of_logits, table
from probes import answer, cases
from transformers import LogitsProcessor

IDS = torch.tensor([[3, 1, 4]])
PARTS = [(d, p) for d in ("fixed", "threshold", "factor") for p in ("none", "prefix", "dual")]


def prefers(first, second=9, length=20):
    """A model that prefers `first` and then `second` everywhere."""
    row = row_of_logits(second, 0.3)
    row[first] = row[second] + 1
    return Scripted(row.repeat(length, 1))


@pytest.mark.parametrize(("decoder", "policy"), PARTS)
@pytest.mark.parametrize(
    "ban",
    [
        {"suppress_tokens": [5, MASK, PAD]},
        {"bad_words_ids": [[5]]},
        {"sequence_bias": [[[5], -50.0]]},
    ],
)
def test_banned_tokens_never_appear(decoder, policy, ban):
    model = prefers(5)
    options = {"decoder": decoder, "cache_policy": policy, "max_new_tokens": 6, "block_length": 4}
    assert answer_of(model, options) == [5] * 6
    assert answer_of(model, {**options, **ban}) == [9] * 6


def answer_of(model, options):
    return model.generate(IDS, **options)[0, 3:].tolist()


def test_confidence_knows_of_bans():
    model = prefers(5)
    plain, banned = (
        model.generate(IDS, max_new_tokens=2, suppress_tokens=ban, return_dict_in_generate=True).confidence
        for ban in (None, [5])
    )
    logits = row_of_logits(9, 0.3)
    logits[5] = -torch.inf
    torch.testing.assert_close(banned, logits.softmax(-1)[9].expand(1, 2))
    assert (plain > banned).all()


@pytest.mark.parametrize(("decoder", "policy"), PARTS)
def test_min_new_tokens(decoder, policy):
    options = {"decoder": decoder, "cache_policy": policy, "max_new_tokens": 8, "block_length": 4}
    assert answer_of(prefers(EOS), options) == [EOS]
    for minimum in (1, 3, 5, 8):
        expected = [9] * minimum + [EOS] * (minimum < 8)
        assert answer_of(prefers(EOS), {**options, "min_new_tokens": minimum}) == expected
    assert answer_of(prefers(EOS), {**options, "min_length": 5}) == [9, 9, EOS]


def test_begin_suppress_tokens():
    assert answer_of(prefers(5), {"begin_suppress_tokens": [5], "max_new_tokens": 3}) == [9, 5, 5]


@given(cases(), st.integers(1, 14))
@settings(max_examples=40)
def test_min_new_tokens_in_ragged_batches(llada, case, minimum):
    case.options["min_new_tokens"] = minimum = min(minimum, case.options["max_new_tokens"])
    output = llada.generate(**case.inputs, **case.options)
    for row in range(len(case.prompts)):
        assert len(answer(output, row)) >= minimum
        assert answer(output, row) == answer(llada.generate(**case.single(row), **case.options))


@given(cases(), st.sampled_from([1.3, 2.0, 0.7]))
@settings(max_examples=40)
def test_repetition_penalty_is_row_wise(llada, case, penalty):
    case.options["repetition_penalty"] = penalty
    output = llada.generate(**case.inputs, **case.options)
    for row in range(len(case.prompts)):
        assert answer(output, row) == answer(llada.generate(**case.single(row), **case.options))


def test_repetition_penalty_counts_prompt_and_committed_tokens():
    """A committed token is penalised in the next step, and a token of the prompt from the first one on."""
    logits = torch.full((20, 64), -5.0)
    logits[:, 5], logits[:, 9], logits[:, 11] = 3.0, 2.0, 1.0
    model = Scripted(logits)
    steps = {"max_new_tokens": 3, "block_length": 1, "repetition_penalty": 10.0}
    assert model.generate(torch.tensor([[0]]), **steps)[0, 1:].tolist() == [5, 9, 11]
    assert model.generate(torch.tensor([[0, 5]]), **steps)[0, 2:].tolist() == [9, 11, 5]
    rows = model.generate(**padded([[5], [0, 9]]), **steps)
    assert rows[:, 2:].tolist() == [[9, 11, 5], [5, 11, 5]]


def test_repetition_penalty_counts_nothing_else():
    """Not the ids of padding, nor what was predicted in a step and not committed."""
    logits = torch.full((20, 64), -5.0)
    logits[0::2, 5], logits[1::2, 9], logits[:, 11] = 3.0, 2.0, 1.9
    model = Scripted(logits)
    options = {"block_length": 4, "max_new_tokens": 2, "repetition_penalty": 10.0}
    assert model.generate(**padded([[0], [0, 0, 0]], pad=9), **options)[:, 3:].tolist() == [[9, 5]] * 2


class Plain(LogitsProcessor):
    """A user's ban, which does not say that it needs no order."""

    def __call__(self, input_ids, scores):
        assert scores.dim() == 2 and input_ids.shape[0] == scores.shape[0]
        scores = scores.clone()
        scores[:, 5] = -torch.inf
        return scores


class Ban(Plain):
    order_free = True


def test_own_processors():
    model = prefers(5)
    options = {"max_new_tokens": 4, "block_length": 2}
    assert answer_of(model, {**options, "logits_processor": [Ban()]}) == [9] * 4
    calls = len(model.calls)
    with pytest.raises(ValueError, match="Plain may depend on left-to-right order.*`order_free = True`"):
        answer_of(model, {**options, "logits_processor": [Plain()]})
    assert len(model.calls) == calls


@pytest.mark.parametrize(
    "option",
    [
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[5, 6]]},
        {"sequence_bias": [[[5, 6], 2.0]]},
        {"prefix_allowed_tokens_fn": lambda row, ids: [1, 2]},
        {"forced_eos_token_id": EOS},
        {"forced_bos_token_id": 1},
        {"exponential_decay_length_penalty": (2, 1.1)},
        {"encoder_no_repeat_ngram_size": 2},
        {"encoder_repetition_penalty": 1.2},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_needs_an_order_is_refused(llada, option):
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match="left-to-right"):
        llada.generate(IDS, max_new_tokens=4, **option)
    assert not shapes


def test_everything_banned_names_the_rows():
    model = prefers(5)
    with pytest.raises(ValueError, match=r"every token is banned, at an open position of row \[0, 1\]"):
        model.generate(torch.tensor([[1], [2]]), suppress_tokens=list(range(64)), max_new_tokens=3)


def test_the_mask_is_never_predicted():
    for decoder, policy in PARTS:
        logits = table(*[(5, 0.9)] * 8)
        logits[:, MASK] = 50.0
        ids = Scripted(logits).generate(torch.tensor([[1]]), decoder=decoder, cache_policy=policy, max_new_tokens=8)
        assert ids[0, 1:].tolist() == [5] * 8
