"""The dynamic decoder: all that is sure, and no less than planned."""

import pytest
import torch
from models import MASK, Scripted, table, tiny_llada
from scripted import Walk, cells, scores_of

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders.dynamic import DynamicDecoder
from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.decoders.klass import KlassDecoder


def commits(decoder, confidences, open_mask, steps=1):
    """What a decoder commits in each of some steps, when the model keeps saying the same."""
    walk, open_mask, shown = Walk(decoder, *torch.tensor(confidences).shape), open_mask.clone(), []
    for _ in range(steps):
        commit = walk(scores_of(confidences), open_mask).commit
        open_mask &= ~commit
        shown.append(["".join("x" if cell else "_" for cell in row) for row in commit.tolist()])
    return shown


def test_the_sure_ones_or_the_best_ones():
    confidences = [[0.95, 0.3, 0.92, 0.5], [0.2, 0.3, 0.92, 0.5], [0.2, 0.3, 0.4, 0.5]]
    decoder = DynamicDecoder(threshold=0.9, steps_per_block=2)
    assert commits(decoder, confidences, cells(*["xxxx"] * 3)) == [["x_x_", "__xx", "__xx"]]
    assert commits(DynamicDecoder(threshold=0.9), confidences, cells(*["xxxx"] * 3)) == [["x_x_", "__x_", "___x"]]


def test_the_threshold_must_be_exceeded_and_smoothing_may_replace_it():
    scores, both = scores_of([[0.5, 0.25]]), cells("xx")
    level = float(Walk(DynamicDecoder(), 1, 2)(scores, both).confidence[0, 0])
    assert commits(DynamicDecoder(threshold=level, ranking="left_to_right"), [[0.5, 0.5]], both) == [["x_"]]
    output = Walk(DynamicDecoder(threshold=0.9), 1, 2)(scores, both, threshold=torch.tensor([0.2]))
    assert output.commit.all()


def test_the_quota_is_over_masks_or_over_the_block():
    """Two of six positions are prompt: four in two steps, or six in two steps."""
    low, open_mask = [[0.1, 0.1, 0.3, 0.4, 0.5, 0.6]], cells("__xxxx")
    over = {q: commits(DynamicDecoder(steps_per_block=2, quota=q), low, open_mask, 2) for q in ("masks", "block")}
    assert over == {"masks": [["____xx"], ["__xx__"]], "block": [["___xxx"], ["__x___"]]}


def test_a_quota_of_zero_lets_the_row_wait():
    """Seven steps for four positions: the first four have a quota of one, the last planned one takes the rest."""
    walk, scores, open_mask = (
        Walk(FixedDecoder(steps_per_block=7, quota="block"), 1, 4),
        scores_of([[0.5] * 4]),
        cells("xxxx"),
    )
    outputs = [walk(scores, open_mask) for _ in range(7)]
    assert [int(o.commit.sum()) for o in outputs] == [1, 1, 1, 1, 0, 0, 4]
    assert [bool(o.waits) for o in outputs] == [False] * 4 + [True] * 2 + [False]
    walk = Walk(KlassDecoder(steps_per_block=7, quota="block"), 1, 4)
    assert bool([walk(scores, open_mask) for _ in range(5)][-1].waits)
    assert Walk(FixedDecoder(steps_per_block=7), 1, 4)(scores, open_mask).waits is None


def test_from_left_to_right():
    scores, gaps = [[0.2, 0.3, 0.4, 0.5, 0.6]], cells("_x_xx")
    for ranking, expected in (("left_to_right", "_x_x_"), ("span", "_x___"), ("low_confidence", "___xx")):
        decoder = FixedDecoder(steps_per_block=3, ranking=ranking, quota="block")
        assert commits(decoder, scores, gaps) == [[expected]]
    # The last planned step takes what a span has left behind.
    assert commits(FixedDecoder(steps_per_block=1, ranking="span"), scores, gaps) == [["_x_xx"]]


def test_rows_that_idle_keep_their_plan():
    walk, scores = Walk(DynamicDecoder(steps_per_block=3), 2, 6), scores_of([[0.3] * 6] * 2)
    walk(scores, cells("xxxxxx", "xxxxxx"), ran=torch.tensor([True, False]))
    assert walk.state.masks.tolist() == [6, 0]
    walk(scores, cells("__xxxx", "xxxxxx"))
    assert walk.state.masks.tolist() == [6, 6] and walk.state.step.tolist() == [2, 1]


def test_it_runs_in_generate():
    """Four sure tokens in one step, then one by one."""
    model = Scripted(table(*[(5, 0.95)] * 4, *[(6, 0.5)] * 4))
    config = DiffusionGenerationConfig(decoder="dynamic", threshold=0.9, max_new_tokens=8, return_dict_in_generate=True)
    output = model.generate(torch.tensor([[1]]), generation_config=config)
    assert output.sequences.tolist() == [[1, 5, 5, 5, 5, 6, 6, 6, 6]]
    assert output.commit_step.tolist() == [[0, 0, 0, 0, 1, 2, 3, 4]]


def test_bad_options():
    with pytest.raises(ValueError, match="`threshold` is 0, but must be"):
        DynamicDecoder(threshold=0)
    with pytest.raises(ValueError, match="`quota` is 'row', but must be one of"):
        DynamicDecoder(quota="row")
    with pytest.raises(ValueError, match="`ranking` is 'best', but must be one of"):
        FixedDecoder(ranking="best")
    with pytest.raises(ValueError, match="`quota` is 'block', but must be 'masks' for the family 'llada'"):
        tiny_llada().generate(
            torch.tensor([[1]]), decoder="dynamic", decoder_config={"quota": "block"}, max_new_tokens=4
        )


def test_the_mask_is_not_in_the_text():
    model = tiny_llada()
    assert MASK not in model.generate(torch.tensor([[1]]), decoder="dynamic", threshold=0.3, max_new_tokens=20)[0]
