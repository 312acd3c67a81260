"""The entropy bound, on entropies that are known."""

import pytest
import torch
from scripted import Walk, cells

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders.entropy_bound import EntropyBoundDecoder, entropies


def chosen(values, open_mask=None, **options):
    """Positions that a decoder chooses for two-token distributions of these probabilities."""
    scores = torch.tensor([[[p, 1 - p] for p in values]]).log()
    open_mask = torch.ones(1, len(values), dtype=torch.bool) if open_mask is None else torch.tensor([open_mask])

    class State:
        def predict(self, scores):
            top, tokens = scores.max(-1)
            return tokens, top.exp()

    ran = torch.ones(1, dtype=torch.bool)
    output = EntropyBoundDecoder(**options)(None, scores, open_mask=open_mask, ran=ran, state=State())
    return output.commit[0].nonzero()[:, 0].tolist()


def entropy(p):
    return -(p * torch.tensor(p).log() + (1 - p) * torch.tensor(1 - p).log()).item()


def test_the_largest_entropy_is_free():
    values = [0.7, 0.99, 0.9, 0.8]
    bound = entropy(0.99) + entropy(0.9)
    assert chosen(values, gamma=bound + 1e-4) == [1, 2, 3]
    assert chosen(values, gamma=bound - 1e-4) == [1, 2]
    assert chosen(values, gamma=0.0) == [1], "the first one is always within the bound"


def test_all_entropies_count_with_include_last():
    values = [0.7, 0.99, 0.9, 0.8]
    bound = entropy(0.99) + entropy(0.9)
    assert chosen(values, gamma=bound + 1e-4, include_last=True) == [1, 2]
    assert chosen(values, gamma=bound - 1e-4, include_last=True) == [1]


def test_the_least_entropy_is_committed_though_another_position_is_more_confident():
    scores = torch.tensor([[[0.52, 0.16, 0.16, 0.16], [0.5, 0.5, 0.0, 0.0]]]).log()
    output = Walk(EntropyBoundDecoder(gamma=0.1, include_last=True), 1, 2)(scores, cells("xx"))
    assert output.confidence[0, 0] > output.confidence[0, 1] and output.commit.tolist() == [[False, True]]


def test_closed_positions_neither_count_nor_are_chosen():
    assert chosen([0.5, 0.99, 0.99], [True, False, True], gamma=10.0) == [0, 2]
    assert chosen([0.5, 0.6, 0.99], [False, True, True], gamma=0.0) == [2]


def test_a_certain_token_has_no_entropy():
    assert entropies(torch.tensor([[[0.0, float("-inf")], [0.0, 0.0]]])).tolist() == [[0.0, pytest.approx(0.693147)]]


def test_it_runs_in_generate(llada):
    prompt = torch.tensor([[5, 9, 11], [7, 3, 2]])
    config = DiffusionGenerationConfig(decoder="entropy_bound", decoder_config={"gamma": 0.5}, max_new_tokens=12)
    output = llada.generate(prompt, generation_config=config, return_dict_in_generate=True)
    assert output.num_forwards.max() <= 12
    with pytest.raises(ValueError, match="`gamma` is -1, but must be a number >= 0"):
        DiffusionGenerationConfig(decoder="entropy_bound", decoder_config={"gamma": -1})
