"""Dream's timesteps."""

import pytest
import torch
from models import MASK, padded
from scripted import Walk, cells, scores_of

from dllm_generate.decoders.dream import DreamDecoder
from dllm_generate.sampling import Noise

PROMPTS = [[3, 9, 27, 17, 51, 25], [7], [40, 2, 30]]


def counts(decoder, row):
    """Positions that each step commits, of a block with falling confidences."""
    length = len(row)
    walk, opened, found = Walk(decoder, 1, length), cells(row), []
    scores = scores_of([[0.9 - 0.5 * place / length for place in range(length)]])
    while opened.any():
        commit = walk(scores, opened).commit
        found.append(int(commit.sum()))
        assert found[-1] and commit.equal(opened & (opened.cumsum(-1) <= found[-1]))
        opened = opened & ~commit
    return found


@pytest.mark.parametrize("ranking", ["low_confidence", "margin", "entropy"])
@pytest.mark.parametrize(
    ("values", "row", "expected"),
    [
        # t = 1, 0.75, 0.5, 0.25, 0.001: 8 * 0.25, 7 * 0.333, 5 * 0.499, and the rest.
        ({"steps_per_block": 4}, "oooooooo", [1, 2, 2, 3]),
        ({"steps": 4}, "oooooooo", [1, 2, 2, 3]),
        # t = 1, 0.875, 0.75, 0.625, 0.5: one position each time, however often.
        ({"steps_per_block": 4, "eps": 0.5}, "oooooooo", [1, 1, 1, 5]),
        ({"steps_per_block": 1}, "oooooooo", [8]),
        # 3 * 0.25 and 3 * 0.333 are less than 1.
        ({"steps_per_block": 4}, "_o_o__o_", [1, 2]),
        ({"steps_per_block": 8}, "o______o", [2]),
        # As many timesteps as open positions: 4 * 0.25 is a little less than 1.
        ({}, "oooo____", [1, 1, 2]),
        ({}, "o_______", [1]),
    ],
)
def test_quotas(ranking, values, row, expected):
    assert counts(DreamDecoder(**values, ranking=ranking), row) == expected


def test_the_quota_of_a_timestep_is_that_of_the_published_loop():
    """Timesteps one by one, with those that commit nothing, against those that are passed over."""
    for steps in (1, 2, 3, 5, 8, 16, 40):
        for masks in range(1, 25):
            times, left, expected = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64), masks, []
            for step in range(steps):
                share = 1.0 if step == steps - 1 else 1 - float(times[step + 1] / times[step])
                expected.append(int(left * share))
                left -= expected[-1]
            found = counts(DreamDecoder(steps_per_block=steps), "o" * masks)
            assert found == [count for count in expected if count], (steps, masks)


def test_what_comes_first():
    # Sure of the wrong thing: the two best of the first position are close, the second has one rival, the last many.
    probabilities = torch.full((1, 3, 10), 1e-4)
    probabilities[0, 0, :2] = torch.tensor([0.53, 0.4692])
    probabilities[0, 1, :2] = torch.tensor([0.6, 0.3992])
    probabilities[0, 2] = torch.tensor([0.61] + [0.39 / 9] * 9)
    for ranking, expected in (("low_confidence", 2), ("margin", 2), ("entropy", 1)):
        walk = Walk(DreamDecoder(steps_per_block=3, ranking=ranking, eps=1e-9), 1, 3)
        assert walk(probabilities.log(), cells("ooo")).commit[0].int().argmax() == expected


def noise(rows, length, step):
    return Noise(7, torch.arange(rows), torch.full((rows,), step), torch.arange(length).expand(rows, -1))


def test_origin_chooses_every_position_with_the_probability_of_the_share():
    rows, length, decoder = 50, 80, DreamDecoder(steps_per_block=4, ranking="origin")
    walk = Walk(decoder, rows, length)
    opened, scores = torch.ones(rows, length, dtype=torch.bool), scores_of([[0.5] * length] * rows)
    for step, share in enumerate((0.24975, 0.33289, 0.49900, 1.0)):
        walk.state.noise = noise(rows, length, step)
        output = walk(scores, opened)
        assert abs(output.commit.sum() / opened.sum() - share) < 0.03
        assert torch.equal(output.waits, ~output.commit.any(-1))
        opened = opened & ~output.commit
    assert not opened.any()


def test_steps_that_commit_nothing_are_bounded(llada):
    """Of origin only: with 100 timesteps for 4 positions most pass, and the last takes all that are left."""
    options = {"max_new_tokens": 4, "eos_token_id": MASK, "return_dict_in_generate": True}
    decoder = DreamDecoder(steps=100, ranking="origin")
    output = llada.generate(**padded(PROMPTS), **options, decoder=decoder)
    assert ((output.num_forwards > 4) & (output.num_forwards <= 100)).all()
    assert not (output.sequences[:, -4:] == MASK).any()
    entropy = llada.generate(**padded(PROMPTS), **options, decoder="dream", steps=100)
    assert entropy.num_forwards.tolist() == [3, 3, 3]


def test_ranking_temperature_draws_from_the_softmax_of_the_score():
    rows = 4000
    scores = scores_of([[0.9, 0.5, 0.1]] * rows)
    for temperature in (0.4, 2.0):
        decoder = DreamDecoder(steps_per_block=3, ranking="low_confidence", ranking_temperature=temperature, eps=1e-9)
        walk = Walk(decoder, rows, 3)
        walk.state.noise = noise(rows, 3, 0)
        commit = walk(scores, cells("ooo").expand(rows, -1)).commit
        assert (commit.sum(-1) == 1).all()
        expected = (torch.tensor([0.9, 0.5, 0.1]) / temperature).softmax(0)
        torch.testing.assert_close(commit.float().mean(0), expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("policy", ["none", "dual"])
@pytest.mark.parametrize("values", [{"steps": 14}, {"steps_per_block": 3}, {}])
def test_ragged_rows_over_several_blocks(llada, values, policy):
    options = {"max_new_tokens": 17, "block_length": 5, "decoder": "dream", "cache_policy": policy, **values}
    output = llada.generate(**padded(PROMPTS), **options, return_dict_in_generate=True)
    if "steps" in values:
        assert (output.num_forwards <= 14).all()
    for row, prompt in enumerate(PROMPTS):
        single = llada.generate(torch.tensor([prompt]), **options)[0, len(prompt) :]
        assert torch.equal(output.sequences[row, 6 : 6 + len(single)], single)


@pytest.mark.parametrize(
    "values",
    [
        {"eps": 0},
        {"eps": 1},
        {"eps": "1e-3"},
        {"ranking_temperature": -1},
        {"ranking_temperature": 0.5, "ranking": "origin"},
        {"ranking": "random"},
        {"quota": "block"},
    ],
)
def test_bad_values(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` is"):
        DreamDecoder(**values)
