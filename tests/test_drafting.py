"""Guesses: the tree against a search by brute force, the chain against the steps it stands for."""

import itertools

import pytest
import torch

from dllm_generate.drafting import TOKENS, tree


def brute_force(scores, opened, count):
    """Log-probabilities of the `count` most probable nodes, and the nodes `{position: token}` by log-probability."""
    logs = scores.log_softmax(-1)
    places = [i for i, is_open in enumerate(opened.tolist()) if is_open]
    nodes = []
    for depth in range(1, len(places) + 1):
        for tokens in itertools.product(range(scores.shape[-1]), repeat=depth):
            node = dict(zip(places, tokens))
            nodes.append((sum(logs[i, t].item() for i, t in node.items()), node))
    return sorted(nodes, key=lambda node: -node[0])[:count]


@pytest.mark.parametrize("count", [1, 2, 5, 30])
@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_the_most_probable_nodes(count, sharpness):
    torch.manual_seed(0)
    scores = sharpness * torch.randn(3, 5, 4)
    opened = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 0, 1]]).bool()
    guesses = tree(scores, opened, count)
    for row in range(3):
        wanted = [node for _, node in brute_force(scores[row], opened[row], count)]
        found = [
            {i: int(tokens[i]) for i in range(5) if chosen[i]}
            for tokens, chosen in zip(guesses.tokens[row], guesses.chosen[row])
            if chosen.any()
        ]
        assert found == wanted


def test_rows_without_open_positions_have_no_guesses():
    guesses = tree(torch.randn(2, 3, 4), torch.tensor([[0, 0, 0], [1, 0, 0]]).bool(), 3)
    assert not guesses.chosen[0].any()
    assert guesses.chosen[1].tolist() == [[True, False, False]] * 3
    assert sorted(guesses.tokens[1, :, 0].tolist()) == sorted(set(guesses.tokens[1, :, 0].tolist()))


def test_impossible_tokens_are_no_guesses():
    scores = torch.tensor([[[0.0, float("-inf"), float("-inf")], [0.0, float("-inf"), float("-inf")]]])
    guesses = tree(scores, torch.ones(1, 2, dtype=torch.bool), 6)
    found = [tuple(tokens[chosen].tolist()) for tokens, chosen in zip(guesses.tokens[0], guesses.chosen[0])]
    assert [tokens for tokens in found if tokens] == [(0,), (0, 0)]


def test_long_blocks_and_large_vocabularies_are_cut():
    guesses = tree(torch.randn(1, 64, 50), torch.ones(1, 64, dtype=torch.bool), 200)
    assert guesses.tokens.shape == (1, 200, 64)
    assert guesses.chosen[0].any(-1).all() and guesses.chosen[0].sum(-1).max() <= 12
    assert len(set(guesses.tokens[0, guesses.chosen[0].sum(-1) == 1, 0].tolist())) <= TOKENS
