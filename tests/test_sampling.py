"""Tokens, confidences and noise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dllm_generate.sampling import Noise, Sampler


def noise(rows=1, length=4, seed=0, step=0, row=0):
    return Noise(seed, torch.arange(row, row + rows), torch.full((rows,), step), torch.arange(length).repeat(rows, 1))


def sampler(*warpers, **kwargs):
    return Sampler(LogitsProcessorList(warpers), **kwargs)


@given(st.integers(0, 2**62), st.integers(1, 3), st.integers(1, 40))
@settings(max_examples=40)
def test_greedy_takes_the_best_and_its_probability(seed, rows, vocabulary):
    scores = torch.randn(rows, 4, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4
    tokens, confidence = Sampler()(scores, None)
    best, expected = scores.softmax(-1).max(-1)
    torch.testing.assert_close(confidence, best)
    assert torch.equal(tokens, expected) and confidence.dtype == torch.float32


def test_low_precision_scores_have_float32_confidence():
    scores = torch.randn(2, 3, 50).bfloat16() * 5
    _, confidence = Sampler()(scores, None)
    torch.testing.assert_close(confidence, scores.float().softmax(-1).amax(-1))


def test_confidence_is_that_of_the_unscaled_logits():
    """Not of the filtered ones, where many positions tie at 1; that is a documented switch."""
    scores = torch.randn(8, 4, 30)
    cold = (TemperatureLogitsWarper(0.1), TopPLogitsWarper(0.5))
    tokens, plain = sampler(*cold)(scores, noise(8))
    torch.testing.assert_close(plain, scores.softmax(-1).gather(-1, tokens[..., None])[..., 0])
    _, filtered = sampler(*cold, filtered_confidence=True)(scores, noise(8))
    assert (filtered == 1).float().mean() > 0.5 > (plain == 1).float().mean()


def test_postponed_tokens_have_no_confidence_and_do_not_weigh():
    scores = torch.tensor([[[3.0, 2.0, 1.0], [0.0, 2.0, 1.0]]])
    tokens, confidence = Sampler(postponed=(0,))(scores, None)
    assert tokens.tolist() == [[0, 1]] and confidence[0, 0] == 0
    torch.testing.assert_close(confidence[0, 1], torch.tensor([2.0, 1.0]).softmax(0)[0])


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_distribution(temperature):
    scores = torch.tensor([2.0, 1.0, 0.0, -torch.inf, -1.0])
    draws = 20_000
    warper = () if temperature == 1.0 else (TemperatureLogitsWarper(temperature),)
    tokens, _ = sampler(*warper)(scores.expand(1, draws, 5), noise(length=draws))
    expected = (scores / temperature).softmax(-1)
    torch.testing.assert_close(tokens[0].bincount(minlength=5) / draws, expected, atol=0.015, rtol=0)
    assert not (tokens == 3).any(), "what is banned is never drawn"


def test_filters_hold():
    scores = torch.randn(50, 4, 30) * 3
    tokens, _ = sampler(TopKLogitsWarper(3))(scores, noise(50))
    assert (scores.topk(3).indices == tokens[..., None]).any(-1).all()
    assert torch.equal(sampler(TopKLogitsWarper(1))(scores, noise(50))[0], scores.argmax(-1))


def test_scores_are_not_changed():
    scores = torch.randn(2, 4, 9)
    before = scores.clone()
    sampler(TemperatureLogitsWarper(0.3), TopKLogitsWarper(2))(scores, noise(2))
    assert torch.equal(scores, before)


@given(st.integers(0, 2**62 - 1), st.integers(0, 500), st.integers(0, 500))
@settings(max_examples=40)
def test_noise_is_a_function_of_its_key(seed, row, step):
    numbers = noise(3, 8, seed, step, row).uniform()
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert torch.equal(numbers[1:], noise(2, 8, seed, step, row + 1).uniform()), "not of the rows beside"
    assert torch.equal(numbers[:, :5], noise(3, 5, seed, step, row).uniform()), "nor of the positions beside"
    for other in (noise(3, 8, seed + 1, step, row), noise(3, 8, seed, step + 1, row), noise(3, 8, seed, step, row + 3)):
        assert not (other.uniform() == numbers).any()
    assert not (noise(3, 8, seed, step, row).uniform(stream=1) == numbers).any()


def test_noise_is_uniform_and_uncorrelated():
    numbers = noise(200, 200).uniform()
    assert abs(numbers.mean() - 0.5) < 0.005 and abs(numbers.var() - 1 / 12) < 0.003
    histogram = torch.histc(numbers.float(), 20, 0, 1) / numbers.numel()
    assert (histogram - 0.05).abs().max() < 0.004
    steps = torch.stack([noise(1, 500, step=step).uniform()[0] for step in range(40)])
    for grid in (numbers, steps):
        correlation = torch.corrcoef(grid[:40])
        assert (correlation - torch.eye(40)).abs().max() < 0.3
    shifted = torch.corrcoef(torch.stack([numbers[:-1].flatten(), numbers[1:].flatten()]))
    assert shifted[0, 1].abs() < 0.02
