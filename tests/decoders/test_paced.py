"""The threshold rule that keeps to a plan."""

import pytest
import torch
from models import padded
from scripted import Walk, scores_of

from dllm_generate.decoders.paced import PacedDecoder
from dllm_generate.progress import with_progress


def committed(decoder, steps):
    """What each step commits, given the confidences of each; the best is taken in any case, as in a run."""
    length = len(steps[0])
    walk, opened, found = Walk(decoder, 1, length), torch.ones(1, length, dtype=torch.bool), []
    for confidences in steps:
        output = walk(scores_of([confidences]), opened)
        commit = with_progress(output.commit, output.confidence, opened, opened.any(-1))
        opened = opened & ~commit
        found.append("".join("o" if cell else "_" for cell in commit[0].tolist()))
    return found


def test_the_plan_is_not_exceeded_and_what_was_refused_is_made_up_for():
    sure, unsure = [0.9, 0.8, 0.7, 0.95, 0.6, 0.85], [0.4, 0.3, 0.2, 0.45, 0.15, 0.35]
    decoder = PacedDecoder(threshold=0.5, steps_per_block=3)
    assert committed(decoder, [sure, sure, sure]) == ["o__o__", "_o___o", "__o_o_"]
    # One of two in the first step, so three are considered in the second.
    assert committed(decoder, [unsure, sure, sure]) == ["___o__", "oo___o", "__o_o_"]
    assert committed(decoder, [unsure] * 6) == ["___o__", "o_____", "_____o", "_o____", "__o___", "____o_"]


def test_behind_the_planned_steps_everything_is_considered():
    unsure, sure = [0.4, 0.3, 0.2, 0.1], [0.9, 0.8, 0.7, 0.6]
    assert committed(PacedDecoder(threshold=0.5, steps_per_block=2), [unsure, unsure, sure]) == ["o___", "_o__", "__oo"]


def test_a_plan_of_one_step_is_the_threshold_rule():
    assert committed(PacedDecoder(threshold=0.75, steps_per_block=1), [[0.8, 0.5, 0.9, 0.7]]) == ["o_o_"]


def test_an_uneven_plan_begins_with_the_larger_steps():
    sure = [0.9, 0.8, 0.7, 0.95, 0.6]
    assert committed(PacedDecoder(threshold=0.5, steps_per_block=3), [sure] * 3) == ["o__o_", "_oo__", "____o"]


def test_ragged_rows(llada):
    prompts = [[3, 9, 27, 17, 51, 25], [7], [40, 2, 30]]
    options = {"max_new_tokens": 17, "block_length": 5, "decoder": "paced", "threshold": 0.3, "steps": 8}
    output = llada.generate(**padded(prompts), **options)
    for row, prompt in enumerate(prompts):
        single = llada.generate(torch.tensor([prompt]), **options)[0, len(prompt) :]
        assert torch.equal(output[row, 6 : 6 + len(single)], single)


@pytest.mark.parametrize("values", [{"threshold": 0}, {"quota": "block"}, {"steps": 0}])
def test_bad_values(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` is"):
        PacedDecoder(**values)
