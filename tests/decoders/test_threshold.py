"""The threshold rule and its variants."""

import pytest
import torch
from scripted import Walk, cells, scores_of

from dllm_generate.decoders.threshold import ThresholdDecoder
from dllm_generate.progress import with_progress

CONFIDENCES = [0.8, 0.5, 0.9, 0.7, 0.95]


def chosen(decoder, open_cells="oooo_", threshold=None):
    walk = Walk(decoder, 1, len(open_cells))
    commit = walk(scores_of([CONFIDENCES]), cells(open_cells), threshold=threshold).commit[0].tolist()
    return "".join("o" if cell else "_" for cell in commit)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"threshold": 0.75}, "o_o__"),
        ({"threshold": 0.99}, "_____"),
        ({"threshold": 0.99, "minimal_topk": 1}, "_____"),
        ({"threshold": 0.99, "minimal_topk": 3}, "o_oo_"),
        ({"threshold": 0.75, "minimal_topk": 2}, "o_o__"),
        ({"threshold": 0.6, "minimal_topk": 2}, "o_oo_"),
        ({"threshold": 0.99, "minimal_topk": 9}, "oooo_"),
        ({"threshold": 0.99, "near_tie": 0.15}, "o_o__"),
    ],
)
def test_what_is_committed(values, expected):
    assert chosen(ThresholdDecoder(**values)) == expected


def test_a_threshold_for_the_step():
    assert chosen(ThresholdDecoder(0.6), threshold=torch.tensor([0.85])) == "__o__"


# Two probabilities of position 0, of 1 and of 2; the rest is spread over eight tokens.
FALLBACK = [(0.55, 0.40), (0.45, 0.05), (0.50, 0.499)]


@pytest.mark.parametrize(
    ("fallback", "first"), [("low_confidence", 0), ("margin", 1), ("entropy", 2), ("left_to_right", 0)]
)
def test_what_comes_first_where_nothing_reaches_the_threshold(fallback, first):
    scores = torch.stack([torch.tensor([a, b, *[(1 - a - b) / 8] * 8]).log() for a, b in FALLBACK])[None]
    output = Walk(ThresholdDecoder(0.99, fallback=fallback), 1, 3)(scores, cells("ooo"))
    assert not output.commit.any()
    forced = with_progress(output.commit, output.priority, cells("ooo"), torch.tensor([True]))
    assert forced[0].nonzero()[:, 0].tolist() == [first]


@pytest.mark.parametrize(
    "values", [{"minimal_topk": 0}, {"minimal_topk": 1.5}, {"near_tie": -1}, {"strict": 1}, {"fallback": "random"}]
)
def test_bad_values(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` is"):
        ThresholdDecoder(**values)
