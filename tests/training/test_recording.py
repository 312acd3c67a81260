"""Recording of decoding: what is kept, and what is refused."""

import dataclasses

import pytest
import torch
from models import byte_tokenizer, tiny_llada

from dllm_generate.bundled import load
from dllm_generate.evaluation.prompts import Prompt
from dllm_generate.evaluation.tasks import is_heldout
from dllm_generate.training.recording import Trajectories, record, training_prompts
from dllm_generate.training.trajectories import TrajectoryBatches, TrajectorySource

THRESHOLD = {"decoder": "threshold", "threshold": 0.98}


@pytest.fixture(scope="module")
def bundled():
    return load(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def prompts():
    return training_prompts(["add", "total"], n=6, seed=1, level=1)


@pytest.fixture(scope="module")
def runs(bundled, prompts):
    return record(*bundled, prompts, max_new_tokens=48, **THRESHOLD)


def test_answers_are_verified_and_lengths_count_the_eos(bundled, prompts, runs):
    _, tokenizer = bundled
    known = {p.answer for p in prompts}
    for row in range(len(runs)):
        length = int(runs.answer_lengths[row])
        ids = runs.answer_ids[row].tolist()
        assert ids[length - 1] == tokenizer.eos_token_id and tokenizer.eos_token_id not in ids[: length - 1]
        assert tokenizer.decode(ids[: length - 1]) in known
    assert (runs.commit_step >= 0).all() and runs.facts["options"]["threshold"] == 0.98


def test_wrong_answers_are_dropped_and_the_eos_is_back(bundled):
    model, tokenizer = bundled
    prompts = training_prompts(["map"], n=4, seed=2, level=0)
    halves = [Prompt(p.text, p.is_right if i % 2 else lambda text: False) for i, p in enumerate(prompts)]
    before = model.generation_config.eos_token_id
    runs = record(model, tokenizer, halves, max_new_tokens=32, **THRESHOLD)
    assert len(runs) == 2 and runs.facts["recorded"] == 4 and model.generation_config.eos_token_id == before
    with pytest.raises(ValueError, match="None of the 2 answers is right"):
        record(model, tokenizer, halves[::2], max_new_tokens=32, **THRESHOLD)
    assert len(record(model, tokenizer, halves, max_new_tokens=32, unverified=True, **THRESHOLD)) == 4


def test_training_prompts_are_never_held_out():
    with pytest.raises(ValueError, match=r"`tasks` is \['sums'\]"):
        training_prompts(["sums"], n=1)
    prompts = training_prompts(n=300, level=0)
    assert len({p.text for p in prompts}) == 300 and not any(is_heldout(p.text) for p in prompts)
    assert all(p.is_right(p.answer) and not p.is_right(p.answer + "x") for p in prompts)


def test_save_and_load(tmp_path, runs):
    runs.save(tmp_path / "new" / "paths.safetensors")
    again = Trajectories.load(tmp_path / "new" / "paths.safetensors")
    assert again.facts == runs.facts and torch.equal(again.commit_step, runs.commit_step)
    assert torch.equal(again.batch([1, 0]).input_ids, runs.batch([1, 0]).input_ids)
    double = Trajectories.joined([again, runs])
    assert len(double) == 2 * len(runs) and torch.equal(double.answer_ids[len(runs) :], runs.answer_ids)
    tiny_llada().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="`path` is .*model.safetensors"):
        Trajectories.load(tmp_path / "model.safetensors")


def test_canvases_of_several_lengths_are_joined(runs):
    """A batch is as wide as the canvases in it, and what pads a shorter one is not real."""
    lengths = runs.answer_lengths
    short = dataclasses.replace(
        runs, answer_ids=runs.answer_ids[:, :44], commit_step=runs.commit_step[:, :44], canvas_lengths=lengths * 0 + 44
    )
    assert lengths.max() < 44
    both = Trajectories.joined([short, runs])
    alone, mixed = both.batch([0]), both.batch([0, len(runs)])
    assert alone.width == int(runs.prompt_lengths[0]) + 44 and mixed.width == alone.width + 4
    assert torch.equal(mixed.input_ids[0, : alone.width], alone.input_ids[0])
    assert torch.equal(mixed.input_ids[1], runs.batch([0]).input_ids[0])
    assert mixed.real().sum(1).tolist() == [alone.width, mixed.width]


def test_recording_refuses_what_hides_states(bundled):
    model, tokenizer = bundled
    prompts = training_prompts(["map"], n=1, level=0)
    for options, message in (
        ({"decoder": "wino"}, "`decoder` is 'wino', which takes commits back"),
        ({"infill": True}, "`infill` is True, but must be unset"),
        ({"eos_token_id": 1}, "`eos_token_id` is 1, but must be unset"),
    ):
        with pytest.raises(ValueError, match=message):
            record(model, tokenizer, prompts, max_new_tokens=8, **options)
    with pytest.raises(ValueError, match="`prompts` is 'without a judge'"):
        record(model, tokenizer, [Prompt("Hello")], max_new_tokens=8)
    with pytest.raises(ValueError, match="`prompts` is"):
        record(model, tokenizer, [], max_new_tokens=8)


def test_a_model_without_eos_is_recorded():
    tokenizer = byte_tokenizer()
    model = tiny_llada(vocabulary=len(tokenizer), mask_token_id=tokenizer.mask_token_id)
    runs = record(model, tokenizer, [Prompt("ab"), Prompt("c")], max_new_tokens=8, unverified=True, block_length=4)
    assert runs.answer_ids.shape == (2, 8) and runs.prompt_lengths.tolist() == [2, 1]


def test_batches_repeat_themselves_and_visit_all(runs):
    batches = TrajectoryBatches(runs, steps=6, rows=2, parts=1, seed=3)
    assert len(batches) == 6 and torch.equal(batches[1].input_ids, batches[1].input_ids)
    assert batches[1].seed == batches[1].seed != batches[0].seed
    for begin in (0, 3):
        lengths = torch.cat([batches[begin + i].commit_step.sum(1) for i in range(3)])
        assert sorted(lengths.tolist()) == sorted(runs.commit_step.sum(1).tolist())
    assert [batches.chosen(3, step, 2) for step in range(3)] != [batches.chosen(3, step, 2) for step in range(3, 6)]
    with pytest.raises(ValueError, match="`rows` is 8, but must be at most the number of trajectories, 6"):
        TrajectoryBatches(runs, steps=1, rows=8)


def test_a_source_leaves_out_what_is_too_long(tmp_path, runs):
    runs.save(tmp_path / "paths.safetensors")
    source = TrajectorySource(str(tmp_path / "paths.safetensors"))
    lengths = sorted((runs.prompt_lengths + 48).tolist())
    limit = lengths[len(lengths) // 2]
    batches = source.batches(None, steps=1, rows=1, parts=1, seed=0, max_length=limit)
    assert len(batches.trajectories) == sum(length <= limit for length in lengths)
    with pytest.raises(ValueError, match=f"`max_length` is 9, but must be at least {lengths[0]}"):
        source.batches(None, steps=1, rows=1, parts=1, seed=0, max_length=9)
    with pytest.raises(ValueError, match=r"`file` is \[\], but must be the path"):
        TrajectorySource([])
