"""`dllm-generate tune`."""

import json
import shlex
import sys

import pytest
from typer.testing import CliRunner

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.cli import app
from dllm_generate.cli.tune import shell_command

FAST = ("-c", "decoder=threshold,threshold=1e-6,block_length=4", "--max-new-tokens", "8")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "hello"}\n{"prompt": "a longer one"}\n')
    return str(path)


def test_tune_prints_the_winner_and_writes_all_files(invoke, prompts, tmp_path):
    out = tmp_path / "tuned"
    files = ("--output", str(out), "--json", str(tmp_path / "a" / "tuned.json"))
    result = invoke("tune", "--prompts", prompts, *FAST, "--loss", "100", *files)
    assert result.exit_code == 0, result.output
    for word in ("Agreement", "difference", "TPF", "AUP of the front", "Winner: threshold 1e-06"):
        assert word in result.stdout
    (command,) = (line for line in result.stdout.splitlines() if "dllm-generate run" in line)
    assert invoke(*shlex.split(command.replace("PROMPT", "hello"))[1:], "--max-new-tokens", "8").exit_code == 0
    report = json.loads((tmp_path / "a" / "tuned.json").read_text())
    assert report["winner"]["config"]["threshold"] == 1e-6 and report["settings"]["prompts"] == prompts
    assert DiffusionGenerationConfig.from_pretrained(out).block_length == 4


def test_the_bundled_tasks_on_request(invoke):
    result = invoke("tune", "--tasks", "add,map", "-n", "1", "--level", "0", *FAST, "--metric", "speed")
    assert result.exit_code == 0, result.output
    assert "Accuracy over tokens per forward, 2 prompts" in result.stdout and "no prompt right" in result.stdout


def test_a_plot(invoke, prompts, tmp_path):
    pytest.importorskip("matplotlib")
    result = invoke("tune", "--prompts", prompts, *FAST, "--plot", str(tmp_path / "curve.png"))
    assert result.exit_code == 0 and (tmp_path / "curve.png").stat().st_size > 1000
    refused = invoke("tune", "--prompts", prompts, *FAST, "--plot", "curve.doc")
    assert refused.exit_code == 2 and "`plot` is 'curve.doc'" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--prompts"),
        (("--tasks", "sums"), "sums"),
        (("--tasks", "add", "--prompts", "p.txt"), "choose one"),
        (("--prompts", "no such file.txt"), "no such file.txt"),
        (("--tasks", "add", "-c", "decoder=sums"), "`decoder` is 'sums'"),
        (("--tasks", "add", "--metric", "nfe"), "`metric` is 'nfe'"),
        (("--tasks", "add", "--loss", "101"), "`loss` is 101"),
        (("--tasks", "add", "--output", __file__), "must be a folder"),
    ],
)
def test_what_cannot_work_is_one_line_and_status_2(invoke, arguments, message):
    result = invoke("tune", "-n", "1", *arguments)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.stderr


def test_a_missing_extra_is_named(invoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = invoke("tune", "--tasks", "add", "--plot", "curve.png")
    assert result.exit_code == 2 and "pip install dllm_generate[viz]" in result.stderr


def test_help_names_the_options():
    result = CliRunner().invoke(app, ["tune", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for option in ("--prompts", "--loss", "--metric", "--certain", "--plot", "--json", "--output", "--level"):
        assert option in result.output


def test_the_command_of_a_configuration():
    config = {"decoder": "factor", "decoder_config": {"factor": 2}, "smoothing": True, "block_length": 8}
    assert shlex.split(shell_command(config, "a b")) == [
        *("dllm-generate", "run", "PROMPT", "--model", "a b", "--decoder", "factor"),
        *("--decoder-config", '{"factor": 2}', "--set", "smoothing=true", "--block-length", "8"),
    ]
