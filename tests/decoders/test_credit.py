"""Credits: the sparse form against a dense one, per block, and still where a row is idle."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Walk, cells, scores_of

from dllm_generate.decoders.credit import CreditDecoder
from dllm_generate.decoders.threshold import ThresholdDecoder
from dllm_generate.sampling import Sampler


class Dense:
    """The published form: a matrix over the vocabulary."""

    def __init__(self, decoder, shape):
        self.decoder, self.credit = decoder, torch.zeros(shape)

    def __call__(self, scores, open_mask, ran):
        alpha, beta, gamma = self.decoder.alpha, self.decoder.beta, self.decoder.gamma
        probability, token = scores.softmax(-1).max(-1, keepdim=True)
        earned = torch.zeros_like(self.credit).scatter(-1, token, probability**gamma * open_mask[..., None])
        moved = self.credit * beta + earned
        self.credit = torch.where(ran[:, None, None], moved, self.credit)
        tokens, confidence = Sampler()(scores + alpha * self.credit.log1p(), None)
        return tokens, confidence


@given(
    st.integers(0, 10_000),
    st.sampled_from([(0.7, 0.8, 0.2), (2.0, 1.0, 1.0), (0.3, 0.0, 0.5), (0.0, 0.5, 0.0)]),
    st.booleans(),
)
@settings(max_examples=60)
def test_against_the_dense_form(seed, weights, has_idle_rows):
    generator = torch.Generator().manual_seed(seed)
    rows, length, vocabulary = 3, 5, 7
    alpha, beta, gamma = weights
    decoder = CreditDecoder(0.5, alpha=alpha, beta=beta, gamma=gamma)
    walk, dense = Walk(decoder, rows, length), Dense(decoder, (rows, length, vocabulary))
    open_mask = torch.rand(rows, length, generator=generator) < 0.9
    for _ in range(length):
        scores = 2 * torch.randn(rows, length, vocabulary, generator=generator)
        ran = torch.rand(rows, generator=generator) < 0.6 if has_idle_rows else torch.ones(rows, dtype=torch.bool)
        output = walk(scores, open_mask, ran)
        tokens, confidence = dense(scores, open_mask & ran[:, None], ran)
        sparse = torch.zeros_like(dense.credit).scatter_add(-1, walk.state.token, walk.state.credit)
        torch.testing.assert_close(sparse, dense.credit)
        torch.testing.assert_close(output.confidence, confidence)
        assert torch.equal(output.tokens, tokens)
        open_mask = open_mask & ~output.commit


def test_a_steady_prediction_is_committed_sooner():
    steady, open_mask = scores_of([[0.6]]), cells("o")
    credit, plain = Walk(CreditDecoder(0.76), 1, 1), Walk(ThresholdDecoder(0.76), 1, 1)
    assert [bool(credit(steady, open_mask).commit) for _ in range(4)] == [False, False, True, True]
    assert not any(bool(plain(steady, open_mask).commit) for _ in range(4))


def test_a_changing_prediction_is_not():
    walk = Walk(CreditDecoder(0.76), 1, 1)
    commits = [bool(walk(scores_of([[0.6]], [[token]]), cells("o")).commit) for token in (1, 2, 3, 4)]
    assert commits == [False] * 4


def test_a_new_block_starts_without_credits():
    walk = Walk(CreditDecoder(), 2, 2)
    first = walk(scores_of([[0.6, 0.5]] * 2), cells("oo", "oo")).confidence
    walk(scores_of([[0.6, 0.5]] * 2), cells("oo", "oo"))
    again = walk(scores_of([[0.6, 0.5]] * 2), cells("oo", "oo"), block=1).confidence
    assert torch.equal(first, again)


def test_an_idle_row_keeps_its_credits():
    walk, scores, both = Walk(CreditDecoder(), 2, 2), scores_of([[0.6, 0.5]] * 2), cells("oo", "oo")
    walk(scores, both)
    before = [x.clone() for x in (walk.state.token, walk.state.credit)]
    walk(scores_of([[0.6, 0.5]] * 2, [[3, 4]] * 2), both, ran=torch.tensor([True, False]))
    for old, new in zip(before, (walk.state.token, walk.state.credit)):
        assert torch.equal(old[1], new[1]) and not torch.equal(old[0], new[0])


def test_more_steps_than_positions():
    """The least credit gives way; nothing else is lost."""
    walk = Walk(CreditDecoder(1.0), 1, 2)
    for token in (1, 2, 3, 1):
        walk(scores_of([[0.6, 0.6]], [[token, 1]]), cells("oo"))
    assert sorted(walk.state.token[0, 0].tolist()) == [1, 3]
    assert walk.state.token[0, 1, 0] == 1 and walk.state.credit[0, 1, 1] == 0


def test_memory_does_not_depend_on_the_vocabulary():
    rows, length = 2, 8
    sizes = set()
    for vocabulary in (16, 4096):
        walk = Walk(CreditDecoder(), rows, length)
        walk(torch.randn(rows, length, vocabulary), cells("o" * length, "o" * length))
        fields = [getattr(walk.state, field.name) for field in dataclasses.fields(walk.state)]
        sizes.add(sum(x.numel() for x in fields if isinstance(x, torch.Tensor)))
    # Tokens and credits, and three counters.
    assert sizes == {2 * rows * length * length + 3 * rows}


@pytest.mark.parametrize("values", [{"alpha": -1}, {"beta": 1.5}, {"gamma": -0.1}, {"alpha": True}])
def test_bad_values(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` is"):
        CreditDecoder(**values)
