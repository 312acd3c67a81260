"""The joint decoder, on confidences that are written by hand."""

import pytest
import torch
from scripted import Walk, cells, scores_of

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders.joint import JointDecoder, windowed_sum

PLAIN = {"threshold": 0.8, "joint_threshold": 0.7, "radius": 1, "certain": 1.0, "finish": None}


def chosen(confidences, open_mask=None, threshold=None, **options):
    """Positions of one row that a decoder commits."""
    walk = Walk(JointDecoder(**{**PLAIN, **options}), 1, len(confidences))
    opened = torch.ones(1, len(confidences), dtype=torch.bool) if open_mask is None else cells(open_mask)
    output = walk(scores_of([confidences]), opened, threshold=threshold)
    return output.commit[0].nonzero()[:, 0].tolist()


def test_a_position_needs_a_confident_neighbourhood():
    """0.9 * 0.9 passes at the edge; 0.9 * 0.5 does not, on either side of the doubtful one."""
    assert chosen([0.9, 0.9, 0.9, 0.5, 0.9, 0.9, 0.9]) == [0, 1, 5, 6]


def test_a_position_needs_confidence_of_its_own():
    assert chosen([0.99, 0.75, 0.99]) == [0, 2]
    assert chosen([0.99, 0.75, 0.99], threshold=torch.tensor([0.7])) == [0, 1, 2]
    assert chosen([0.99, 0.95, 0.99], threshold=torch.tensor([0.96])) == [0, 2]


def test_what_is_closed_is_certain():
    assert chosen([0.9, 0.2, 0.9], "x_x") == [0, 2]


def test_the_radius_says_how_far_doubt_reaches():
    confidences = [0.9, 0.99, 0.99, 0.3]
    assert chosen(confidences, radius=0) == [0, 1, 2]
    assert chosen(confidences, radius=2) == [0]
    assert chosen(confidences, radius=9) == []


def test_certain_positions_ask_nobody():
    assert chosen([0.3, 0.96, 0.3]) == []
    assert chosen([0.3, 0.96, 0.3], certain=0.95) == [1]


def test_a_block_that_is_sure_as_a_whole_is_finished():
    confidences = [0.99] * 9 + [0.7]
    mean = (0.99**9 * 0.7) ** 0.1
    assert chosen(confidences, finish=mean - 1e-4) == list(range(10))
    assert chosen(confidences, finish=mean + 1e-4) == list(range(8)), "not the doubtful one and its neighbour"
    assert chosen([0.7], finish=0.9) == []


def test_rows_are_their_own():
    walk = Walk(JointDecoder(**PLAIN), 2, 3)
    output = walk(scores_of([[0.9, 0.9, 0.9], [0.9, 0.1, 0.9]]), torch.ones(2, 3, dtype=torch.bool))
    assert output.commit.tolist() == [[True] * 3, [False] * 3]


def test_impossible_tokens_are_no_nan():
    """A position whose tokens are all banned has no finite score; the step sees to that, not the decoder."""
    scores = scores_of([[0.9, 0.9, 0.9]])
    scores[0, 1] = float("-inf")
    output = Walk(JointDecoder(**PLAIN), 1, 3)(scores, cells("x_x"))
    assert output.commit.tolist() == [[True, False, True]]


def test_windowed_sum_equals_a_loop():
    values = torch.rand(3, 7)
    for radius in (0, 1, 3, 9):
        wanted = [[row[max(0, i - radius) : i + radius + 1].sum() for i in range(7)] for row in values]
        torch.testing.assert_close(windowed_sum(values, radius), torch.tensor(wanted))


@pytest.mark.parametrize(
    ("option", "value"),
    [("joint_threshold", 0), ("certain", 1.5), ("finish", 0.0), ("finish", "1"), ("radius", -1), ("radius", 1.5)],
)
def test_bad_values(option, value):
    with pytest.raises(ValueError, match=f"`{option}` is"):
        DiffusionGenerationConfig(decoder="joint", decoder_config={option: value})
