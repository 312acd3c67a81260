"""`dllm-generate eval` and `bench`."""

import importlib
import json
from pathlib import Path

import pytest

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.cli.evaluate import parse_config
from dllm_generate.evaluation.bench import FIXED_ENVIRONMENT

evaluate_module = importlib.import_module("dllm_generate.cli.evaluate")


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("decoder=threshold,threshold=0.9, cache_policy=dual", {"threshold": 0.9, "cache_policy": "dual"}),
        ('decoder=threshold,decoder_config={"strict": true, "near_tie": 0.1},steps=4', {"steps": 4}),
        ('{"decoder": "threshold", "block-length": 8}', {"block-length": 8}),
        ("decoder=threshold,block-length=8", {"block_length": 8}),
    ],
)
def test_configurations_are_read(text, config):
    parsed = parse_config(text)
    assert parsed["decoder"] == "threshold"
    assert config.items() <= parsed.items()
    if "decoder_config" in text:
        assert parsed["decoder_config"] == {"strict": True, "near_tie": 0.1}


def test_eval_renders_and_writes(invoke, tmp_path):
    path = tmp_path / "new" / "results.json"
    arguments = ("--tasks", "add,map", "-n", "2", "--batch-size", "2", "--max-new-tokens", "8", "--output", str(path))
    result = invoke("eval", *arguments, "-c", "decoder=fixed", "-c", "decoder=factor,block_length=4")
    assert result.exit_code == 0, result.output
    for word in ("accuracy", "TPF", "NFE", "tokens/s", "add", "map", "factor", "AUP", "best of all rows"):
        assert word in result.stdout
    report = json.loads(path.read_text())
    assert [entry["config"]["decoder"] for entry in report["results"]] == ["fixed", "factor"]
    assert report["settings"]["n"] == 2 and len(report["results"][1]["answers"]) == 4
    assert list(report["aup"]["methods"]) == ["fixed", "factor block_length=4"]
    assert report["results"][0]["difference"] is None and set(report["results"][1]["difference"]) >= {"low", "high"}


def test_eval_reads_configurations_from_a_file_and_writes_after_each(invoke, tmp_path, monkeypatch):
    file, path, written = tmp_path / "configs.txt", tmp_path / "results.json", []
    file.write_text('# a comment\n\ndecoder=factor\n{"decoder": "fixed", "lookahead": {"drafts": 2}}\n')
    write = evaluate_module.write_json
    monkeypatch.setattr(
        evaluate_module, "write_json", lambda report, to: (written.append(len(report["results"])), write(report, to))
    )
    arguments = ("--tasks", "add", "-n", "1", "--max-new-tokens", "4", "-o", str(path))
    result = invoke("eval", *arguments, "-c", "decoder=fixed", "--configs", str(file))
    assert result.exit_code == 0, result.output
    decoders = [entry["config"]["decoder"] for entry in json.loads(path.read_text())["results"]]
    assert decoders == ["fixed", "factor", "fixed"] and written == [1, 2, 3]


def test_the_comparison_of_the_docs_can_be_read():
    lines = (Path(__file__).parents[2] / "examples" / "comparison.txt").read_text().splitlines()
    configs = [parse_config(line) for line in lines if not line.startswith("#")]
    for config in configs:
        DiffusionGenerationConfig(**config)
    assert configs[0] == {"decoder": "fixed", "cache_policy": "none"} and len(configs) > 40


def test_eval_as_json_prints_nothing_else(invoke):
    result = invoke("eval", "--tasks", "add", "-n", "1", "--max-new-tokens", "4", "--json", "-c", "decoder=fixed")
    assert len(json.loads(result.stdout)["results"]) == 1


def test_eval_takes_problems_of_a_level(invoke):
    prompts = []
    for level in ("0", "3"):
        arguments = ("--tasks", "add", "-n", "2", "--level", level, "--max-new-tokens", "2", "--json")
        report = json.loads(invoke("eval", *arguments, "-c", "decoder=fixed").stdout)
        assert report["settings"]["level"] == int(level)
        prompts.append([answer["prompt"] for answer in report["results"][0]["answers"]])
    assert max(map(len, prompts[0])) < min(map(len, prompts[1]))
    assert invoke("eval", "--level", "4").exit_code == 2


@pytest.mark.parametrize("arguments", [("--tasks", "sums"), ("-c", "decoder=sums"), ("-c", "sums")])
def test_eval_refuses_what_does_not_exist(invoke, arguments):
    result = invoke("eval", "-n", "1", *arguments)
    assert result.exit_code == 2 and "sums" in result.stderr


def test_bench_measures_and_writes(invoke, tmp_path, monkeypatch):
    for name, value in FIXED_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "bench.json"
    arguments = ("--only", "overhead", "--quick", "--no-larger", "--decoders", "fixed,threshold")
    result = invoke("bench", *arguments, "--output", str(path))
    assert result.exit_code == 0, result.output
    measured = json.loads(path.read_text())["overhead"]["given"]
    assert [entry["config"]["decoder"] for entry in measured] == ["fixed", "threshold"]
    assert measured[0]["forwards"] == 64 and all(entry["ratio"] > 1 for entry in measured)


def test_bench_refuses_an_unknown_part(invoke):
    result = invoke("bench", "--only", "everything")
    assert result.exit_code == 2 and "overhead" in result.stderr
