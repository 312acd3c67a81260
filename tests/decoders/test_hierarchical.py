"""The best of every run of open positions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import Scripted, table
from scripted import Walk, cells, scores_of

from dllm_generate.decoders.hierarchical import HierarchicalDecoder, best_of_runs


def chosen(decoder, confidences, *open_cells, **kwargs):
    walk = Walk(decoder, len(open_cells), len(open_cells[0]))
    return walk(scores_of(confidences), cells(*open_cells), **kwargs).commit.tolist()


def marks(text):
    return [cell != "_" for cell in text]


@pytest.mark.parametrize(
    ("open_cells", "expected"),
    [
        ("oooooo", "__o___"),
        ("oo_ooo", "_o__o_"),
        ("o_o_o_", "o_o_o_"),
        ("______", "______"),
        ("_____o", "_____o"),
    ],
)
def test_the_maximum_of_every_run(open_cells, expected):
    decoder = HierarchicalDecoder(threshold=None, low_threshold=None)
    assert chosen(decoder, [[0.3, 0.4, 0.9, 0.5, 0.6, 0.2]], open_cells) == [marks(expected)]


def test_low_threshold_must_be_exceeded():
    decoder = HierarchicalDecoder(threshold=None, low_threshold=0.4)
    assert chosen(decoder, [[0.3, 0.2, 0.9, 0.5, 0.6]], "oo_oo") == [marks("____o")]
    scores = scores_of([[0.5, 0.2]])
    exactly = Walk(decoder, 1, 2)(scores, cells("oo")).confidence[0, 0]
    exact = HierarchicalDecoder(threshold=None, low_threshold=float(exactly))
    assert not Walk(exact, 1, 2)(scores, cells("oo")).commit.any()


def test_threshold_adds_all_that_exceed_it():
    decoder = HierarchicalDecoder(threshold=0.7, low_threshold=0.4)
    assert chosen(decoder, [[0.8, 0.9, 0.75, 0.5, 0.95]], "oooo_") == [marks("ooo__")]
    replaced = chosen(decoder, [[0.8, 0.9, 0.75, 0.5, 0.95]], "oooo_", threshold=torch.tensor([0.85]))
    assert replaced == [marks("_o___")]


def test_rows_do_not_mix():
    decoder = HierarchicalDecoder(threshold=None, low_threshold=None)
    assert chosen(decoder, [[0.3, 0.4], [0.9, 0.2]], "oo", "oo") == [marks("_o"), marks("o_")]


def test_ties_inside_a_run():
    score, open_mask = torch.tensor([[0.5, 0.5, 0.1, 0.5, 0.2]]), cells("ooo_o")
    assert best_of_runs(score, open_mask).tolist() == [marks("o___o")]
    assert best_of_runs(score, open_mask, ties=True).tolist() == [marks("oo__o")]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12), st.booleans())
def test_against_a_walk_over_the_runs(row, ties):
    expected, run = [False] * len(row), []
    for place, (is_open, _) in enumerate([*row, (False, 0)]):
        if is_open:
            run.append(place)
        elif run:
            best = max(row[i][1] for i in run)
            winners = [i for i in run if row[i][1] == best]
            for winner in winners if ties else winners[:1]:
                expected[winner] = True
            run = []
    is_open, score = (torch.tensor([column]) for column in zip(*row))
    assert best_of_runs(score.float(), is_open, ties).tolist() == [expected]


def test_what_is_decided_together_lies_apart():
    """From one run of doubtful positions: halves, quarters, and so on."""
    confidences = (0.5, 0.45, 0.52, 0.6, 0.51, 0.46, 0.53)
    model = Scripted(table(*((token, confidence) for token, confidence in enumerate(confidences, 5))))
    output = model.generate(torch.tensor([[1]]), max_new_tokens=7, decoder="hierarchical", return_dict_in_generate=True)
    assert output.commit_step[0].tolist() == [2, 3, 1, 0, 2, 3, 1]


@pytest.mark.parametrize(
    "values", [{"threshold": 0}, {"low_threshold": 1.1}, {"low_threshold": "a"}, {"ties": 1}, {"threshold": True}]
)
def test_bad_values(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` is"):
        HierarchicalDecoder(**values)
