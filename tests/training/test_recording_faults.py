"""Faults of recordings: runs that are not whole, damaged files, and runs of another model."""

import dataclasses
import json

import pytest
import torch
from models import byte_tokenizer, tiny_llada
from safetensors.torch import load_file, save_file

from dllm_generate.evaluation.prompts import Prompt
from dllm_generate.training.recording import Trajectories, record, training_prompts
from dllm_generate.training.run import train

PROMPTS = [Prompt("ab"), Prompt("c")]


@pytest.fixture
def tiny():
    tokenizer = byte_tokenizer()
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("mask", "eos", "pad")}
    return tiny_llada(vocabulary=len(tokenizer), **ids), tokenizer


def recorded(tiny, prompts=PROMPTS, **options):
    call = {"max_new_tokens": 8, "block_length": 4, "unverified": True, **options}
    return record(*tiny, prompts, **call)


def runs(**changes):
    """Two whole runs of six cells."""
    grid = torch.arange(6).expand(2, 6)
    counts = [torch.tensor(values) for values in ([3, 2], [6, 4], [6, 6])]
    facts = {"mask_token_id": 258, "eos_token_id": 257}
    whole = Trajectories(torch.ones(2, 3).long(), counts[0], 30 + grid, counts[1], grid, counts[2], facts)
    return dataclasses.replace(whole, **changes)


CUTTING = [("num_return_sequences", 2), ("max_time", 0.001), ("stop_strings", ["3"]), ("infill", True)]


@pytest.mark.parametrize(("name", "value"), CUTTING)
def test_runs_that_are_cut_off_or_doubled_are_not_recorded(tiny, name, value):
    forwards = tiny[0].register_forward_pre_hook(lambda *_: pytest.fail("a forward ran"))
    with pytest.raises(ValueError, match=f"`{name}` is .*, but must be unset"):
        recorded(tiny, do_sample=True, **{name: value})
    setattr(tiny[0].generation_config, name, value)
    with pytest.raises(ValueError, match=f"`{name}` is .*, but must be unset.* from the model's generation config"):
        recorded(tiny, do_sample=True)
    forwards.remove()
    setattr(tiny[0].generation_config, name, None)
    assert len(recorded(tiny, do_sample=True, num_return_sequences=1)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` is 0, but must be an int of at least 1"),
        ({"batch_size": -1}, "`batch_size` is -1"),
        ({"batch_size": 2.5}, "`batch_size` is 2.5"),
        ({"attention_mask": torch.ones(2, 1)}, "`attention_mask` is a Tensor, but must be unset"),
        ({"prompts": ["a"]}, r"`prompts` is \['a'\], but must be a list of `Prompt`"),
    ],
)
def test_arguments_of_record(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        recorded(tiny, **options)


def test_record_takes_no_config(tiny):
    with pytest.raises(ValueError, match="`generation_config` is a .*, but must be unset: give its fields as options"):
        recorded(tiny, generation_config=tiny[0].generation_config)


@pytest.mark.parametrize(
    ("name", "value"), [("level", 9), ("level", -1), ("n", -1), ("n", 0), ("n", "3"), ("tasks", "add"), ("tasks", [[]])]
)
def test_arguments_of_training_prompts(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is "):
        training_prompts(**{"n": 2, name: value})


def changed(name, row, value):
    made = getattr(runs(), name).clone()
    made[row] = value
    return {name: made}


BROKEN = {
    "a cell that no step committed": (changed("commit_step", (0, 5), -1), r"`commit_step` is 'below 0 in rows \[0\]'"),
    "a negative id": (changed("answer_ids", (1, 0), -7), r"`answer_ids` is \[-7\]"),
    "a prompt without tokens": (changed("prompt_lengths", 0, 0), r"`prompt_lengths` is \[0\]"),
    "an answer longer than its canvas": (changed("answer_lengths", 0, 7), r"`answer_lengths` is \[7\]"),
    "a canvas wider than the grid": (changed("canvas_lengths", 1, 54), r"`canvas_lengths` is \[54\]"),
    "a grid of another width": ({"commit_step": torch.zeros(2, 5).int()}, "`commit_step` is '5 columns'"),
    "a row that is missing": ({"prompt_lengths": torch.tensor([3])}, "`prompt_lengths` is '1 rows'"),
    "a vector for a grid": ({"answer_ids": torch.ones(2).long()}, "`answer_ids` is '1-dimensional'"),
    "fractions": ({"prompt_ids": torch.ones(2, 3)}, "`prompt_ids` is torch.float32"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_trajectories_that_cannot_be(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        runs(**changes)
    file = tmp_path / "runs.safetensors"
    runs().save(file)
    save_file({**load_file(file), **changes}, file, {"facts": json.dumps(runs().facts)})
    with pytest.raises(ValueError, match=f"{file} holds no whole recording: {message}"):
        Trajectories.load(file)


def test_cells_behind_a_canvas_need_no_step():
    lengths = torch.tensor([6, 4])
    assert len(runs(canvas_lengths=lengths, **changed("commit_step", (1, 5), -1))) == 2


@pytest.mark.parametrize("facts", [None, "{", "[1]", "{}", '{"mask_token_id": -1, "eos_token_id": 1}'])
def test_files_without_facts(tmp_path, facts):
    file = tmp_path / "runs.safetensors"
    runs().save(file)
    save_file(load_file(file), file, facts and {"facts": facts})
    with pytest.raises(ValueError, match=f"{file} holds no whole recording"):
        Trajectories.load(file)


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_damaged_files_are_named(recipe, tmp_path, content):
    file = tmp_path / "damaged.safetensors"
    file.write_bytes(content)
    data = {"name": "trajectories", "file": str(file)}
    with pytest.raises(ValueError, match="damaged.safetensors holds no whole recording"):
        train(recipe(data=data, objective="trajectory"))
    with pytest.raises(ValueError, match="`path` is .*, but must be a file, not a folder"):
        Trajectories.load(tmp_path)


@pytest.mark.parametrize("name", ["mask_token_id", "eos_token_id"])
def test_recordings_of_different_models_are_not_joined(name):
    other = runs(facts={**runs().facts, name: 5})
    with pytest.raises(ValueError, match=rf"`{name}` is \[25[78], 5\], but must be the same"):
        Trajectories.joined([runs(), other])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"facts": {"mask_token_id": 5, "eos_token_id": 1}}, "`mask_token_id` is 5, but must be 258"),
        ({"answer_ids": torch.full((2, 6), 99_999)}, "`trajectories` is 'with the id 99999', but must be below"),
    ],
)
def test_a_recording_of_another_model_is_refused(recipe, tmp_path, tiny, changes, message):
    assert tiny[1].mask_token_id == 258
    runs(**changes).save(tmp_path / "runs.safetensors")
    data = {"name": "trajectories", "file": str(tmp_path / "runs.safetensors")}
    with pytest.raises(ValueError, match=message):
        train(recipe(data=data, objective="trajectory", rows=2))
    assert not (tmp_path / "run").exists()
