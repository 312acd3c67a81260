"""Operations and host reads of a step outside of the model's own forward: pinned, so that neither creeps up."""

import pytest
import torch
from counting import IDS, Counter, operations, outside, reads
from models import MASK


def per_step(long, short, steps):
    """What every step adds: a long call less a short one of as many blocks less."""
    return (len(long) - len(short)) / steps


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"decoder": "threshold", "threshold": 1.0, "cache_policy": "dual"}, 151),
        ({"decoder": "fixed", "cache_policy": "none"}, 160),
        ({"decoder": "threshold", "threshold": 1.0, "cache_policy": "dual", "smoothing": True}, 200),
    ],
)
def test_operations_of_a_step(llada, options, limit):
    """Greedy, batch 1; one token per step, so 16 more tokens are 16 more steps."""
    long, short = (operations(llada, n, **options) for n in (48, 32))
    assert limit / 2 < per_step(long, short, 16) <= limit
    assert not {name for name in long[len(short) :] if "one_hot" in name or "nonzero" in name or "unique" in name}


def test_operations_do_not_depend_on_the_prompt(llada):
    options = {
        "decoder": "threshold",
        "threshold": 1.0,
        "cache_policy": "dual",
        "block_length": 16,
        "max_new_tokens": 16,
    }
    counts = []
    for length in (1, 200):
        counter = Counter()
        with outside(llada, counter), counter:
            llada.generate(torch.ones(1, length).long(), eos_token_id=MASK, **options)
        counts.append(len(counter.names))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
@pytest.mark.parametrize("decoder", ["fixed", "threshold", "factor", "hierarchical", "credit", "wino"])
def test_one_host_read_per_step(llada, monkeypatch, decoder, policy):
    """Batch 1, greedy, without observers: one packed read, and none that hides in indexing."""
    options = {"decoder": decoder, "cache_policy": policy}
    if decoder in ("threshold", "credit"):
        options["threshold"] = 1.0
    full = {"eos_token_id": MASK, "block_length": 16, "return_dict_in_generate": True, **options}
    steps = [int(llada.generate(IDS, max_new_tokens=n, **full).num_forwards) for n in (48, 32)]
    long, short = (reads(llada, monkeypatch, n, **options) for n in (48, 32))
    assert per_step(long, short, steps[0] - steps[1]) == 1
    assert long.count("tolist") >= steps[0]


@pytest.mark.parametrize("smoothing", [True, {"top_k": 4}])
def test_smoothing_adds_no_read(llada, monkeypatch, smoothing):
    options = {"decoder": "threshold", "threshold": 1.0, "cache_policy": "vicinity", "smoothing": smoothing}
    long, short = (reads(llada, monkeypatch, n, **options) for n in (48, 32))
    assert per_step(long, short, 16) == 1


def test_batches_read_once_per_step_too(llada, monkeypatch):
    """A finished row that leaves the batch costs a constant number of reads, not one per step."""
    ids = torch.tensor([[3, 1, 4], [1, 5, 9], [2, 6, 5]])
    options = {"decoder": "fixed", "cache_policy": "dual", "ids": ids}
    long, short = (reads(llada, monkeypatch, n, **options) for n in (48, 32))
    assert per_step(long, short, 16) == 1
