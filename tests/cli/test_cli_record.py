"""`dllm-generate record`."""

import json

import pytest

from dllm_generate.training.recording import Trajectories

OPTIONS = ("--max-new-tokens", "8", "--block-length", "4", "--decoder", "fixed", "--unverified")


def test_problems_of_the_tasks_are_recorded(invoke, tmp_path):
    path = tmp_path / "new" / "runs.safetensors"
    result = invoke("record", "-o", str(path), "--tasks", "add,map", "-n", "3", "--level", "0", *OPTIONS)
    assert result.exit_code == 0, result.output
    assert "3 of 3 runs kept, 8.0 steps each" in result.stderr and str(path) in result.stderr.replace("\n", "")
    runs = Trajectories.load(path)
    assert len(runs) == 3 and runs.answer_ids.shape[1] == 8 and runs.facts["options"]["decoder"] == "fixed"


def test_prompts_of_a_file_are_recorded(invoke, tmp_path):
    file, path = tmp_path / "prompts.jsonl", tmp_path / "runs.safetensors"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "abc", "abcd")))
    result = invoke("record", "-o", str(path), "--prompts", str(file), "-n", "2", *OPTIONS)
    assert result.exit_code == 0, result.output
    lengths = Trajectories.load(path).prompt_lengths
    assert len(lengths) == 2 and lengths[1] == lengths[0] + 1


def test_wrong_answers_are_not_kept(invoke, tmp_path):
    file, path = tmp_path / "prompts.jsonl", tmp_path / "runs.safetensors"
    file.write_text('{"prompt": "ab", "answer": "no random model writes this"}\n')
    result = invoke("record", "-o", str(path), "--prompts", str(file), *OPTIONS[:-1])
    assert result.exit_code == 2 and "None of the 1 answers is right" in result.stderr and not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "runs.json"), "`output` is 'runs.json'"),
        (("-o", "runs.safetensors", "--tasks", "sums"), "`tasks` is ['sums']"),
        (("-o", "runs.safetensors", "--prompts", "x.txt", "--tasks", "add"), "choose one"),
        (("-o", "runs.safetensors", "--prompts", "missing.txt"), "missing.txt"),
        (("-o", "runs.safetensors", "--decoder", "wino"), "takes commits back"),
        (("-o", "runs.safetensors", "--set", "infill=true"), "`infill` is True"),
    ],
)
def test_what_cannot_be_recorded(invoke, arguments, message):
    result = invoke("record", *arguments)
    assert result.exit_code == 2 and message in result.stderr.replace("\n", "")


def test_the_seed_chooses_the_problems(invoke, tmp_path):
    prompts = []
    for seed in ("0", "0", "1"):
        arguments = ("-n", "2", "--tasks", "map", "--level", "0", "--seed", seed, *OPTIONS)
        assert invoke("record", "-o", str(tmp_path / "runs.safetensors"), *arguments).exit_code == 0
        prompts.append(Trajectories.load(tmp_path / "runs.safetensors").prompt_ids.tolist())
    assert prompts[0] == prompts[1] != prompts[2]


@pytest.mark.parametrize("place", ["a_file/runs.safetensors", "a_folder.safetensors"])
def test_a_place_that_cannot_be_written_is_told_before_decoding(invoke, tmp_path, monkeypatch, place):
    (tmp_path / "a_file").write_text("x")
    (tmp_path / "a_folder.safetensors").mkdir()
    monkeypatch.setattr("dllm_generate.cli.record.load_model", lambda source: pytest.fail("loaded"))
    result = invoke("record", "-o", str(tmp_path / place), "-n", "1", *OPTIONS)
    assert result.exit_code == 2 and f"{place} cannot be written" in result.stderr.replace("\n", "")
