"""The threshold rule and its variants."""

import pytest
import torch
from scripted import Walk, cells, scores_of

from dllm_generate.decoders.threshold import ThresholdDecoder

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


@pytest.mark.parametrize("values", [{"minimal_topk": 0}, {"minimal_topk": 1.5}, {"near_tie": -1}, {"strict": 1}])
def test_bad_values(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` is"):
        ThresholdDecoder(**values)
