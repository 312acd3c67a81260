"""`dllm-generate run` and `chat`."""

import json
import time

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from dllm_generate import __version__
from dllm_generate.bundled import load
from dllm_generate.cli import app
from dllm_generate.cli import chat as chat_module
from dllm_generate.cli.run import answer_live
from dllm_generate.text import Reply, reply, user

SHORT = ("--max-new-tokens", "12", "--block-length", "4")


@pytest.mark.parametrize("command", ["run", "chat", "eval", "tune", "bench"])
def test_help_names_every_option_with_its_default(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "--model" in result.output and "default" in result.output.lower()


def test_run_prints_what_generate_returns_and_the_figures_on_stderr(invoke, folder):
    result = invoke("run", "hello", *SHORT, "--decoder", "threshold", "--cache-policy", "dual")
    model, tokenizer = load(folder, device="cpu")
    expected = reply(
        model, tokenizer, [user("hello")], max_new_tokens=12, block_length=4, decoder="threshold", cache_policy="dual"
    )[0]
    assert result.exit_code == 0
    assert result.stdout == expected.text + "\n"
    assert f"{expected.tokens} tokens, {expected.forwards} forwards, " in result.stderr
    assert "tokens per forward" in result.stderr and "tokens/s" in result.stderr


def test_the_prompt_comes_from_an_argument_a_file_or_stdin(invoke, tmp_path):
    (tmp_path / "prompt.txt").write_text("hello\n")
    outputs = {
        invoke("run", "hello", *SHORT).stdout,
        invoke("run", "--file", str(tmp_path / "prompt.txt"), *SHORT).stdout,
        invoke("run", *SHORT, text="hello\n").stdout,
        invoke("run", "-", *SHORT, text="hello\n").stdout,
    }
    assert len(outputs) == 1


def test_run_as_json(invoke):
    result = invoke("run", "hello", *SHORT, "--json")
    answer = json.loads(result.stdout)
    assert answer["forwards"] > 0 and answer["finish_reason"] in ("eos", "length")
    assert answer["tokens_per_forward"] == pytest.approx(answer["tokens"] / answer["forwards"])


def test_sampling_follows_the_seed(invoke):
    first, same, other = (
        invoke("run", "hello", *SHORT, "--temperature", "2.0", "--seed", seed).stdout for seed in ("1", "1", "2")
    )
    assert first == same != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--threshold", "2"], "`threshold` is 2.0"),
        (["hello", "--decoder", "none"], "`decoder` is 'none'"),
        (["hello", "--set", "factor=2"], "decoder_config"),
        (["hello", "--max-new-tokens", "5000"], "max_position_embeddings"),
        (["hello", "--file", "x"], "choose one"),
        (["--file", "no such file"], "no such file"),
        ([" "], "empty"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_status_2(invoke, arguments, message):
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.stderr


def test_a_missing_folder_is_named():
    result = CliRunner().invoke(app, ["run", "hello", "--model", "./no/such/folder"])
    assert result.exit_code == 2 and "no/such/folder" in result.stderr


def test_a_model_that_is_nowhere_is_said_so_in_one_line(monkeypatch, capfd):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    begin = time.perf_counter()
    result = CliRunner().invoke(app, ["run", "hello", "--model", "nobody/nothing"])
    assert time.perf_counter() - begin < 5
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert "`model` is 'nobody/nothing', which is no local folder" in result.stderr
    assert "HF_HUB_OFFLINE is set" in result.stderr and not any(capfd.readouterr())


def test_the_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"dllm-generate {__version__}\n")


@pytest.mark.parametrize("arguments", [("run", "hello"), ("run", "hello", "--json"), ("chat",)])
def test_an_empty_answer_is_said_so_on_stderr(invoke, monkeypatch, arguments):
    for module in ("chat", "run"):
        monkeypatch.setattr(f"dllm_generate.cli.{module}.answer_live", lambda *rest: Reply(" ", 0, 3, 0.1, "eos"))
    result = invoke(*arguments, text="hello\n")
    assert result.exit_code == 0 and "The answer is empty: it holds no text (ended by eos)." in result.stderr
    assert "answer is empty" not in result.stdout


def test_chat_hands_its_history_on(invoke, monkeypatch):
    seen = []

    def record(model, tokenizer, conversation, *rest):
        seen.append([dict(message) for message in conversation])
        return Reply(f"answer {len(seen)}", 2, 1, 0.1, "eos")

    monkeypatch.setattr(chat_module, "answer_live", record)
    result = invoke("chat", "--system", "be kind", text="one\n\ntwo\n/reset\nthree\n/exit\nfour\n")
    assert result.stdout == "answer 1\nanswer 2\nanswer 3\n"
    contents = [[message["content"] for message in conversation] for conversation in seen]
    assert contents == [["be kind", "one"], ["be kind", "one", "answer 1", "two"], ["be kind", "three"]]
    assert [message["role"] for message in seen[1]] == ["system", "user", "assistant", "user"]


def test_chat_survives_a_turn_that_is_refused(invoke):
    result = invoke("chat", *SHORT, "--json", text="x" * 600 + "\nhello\n")
    assert "max_position_embeddings" in result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert result.exit_code == 0 and json.loads(result.stdout)["text"] is not None


def test_an_answer_holds_no_special_ids(folder):
    model, tokenizer = load(folder, device="cpu")
    # Makes EOS and pad as likely as anything else can be.
    for token in (tokenizer.eos_token_id, tokenizer.pad_token_id):
        model.lm_head.weight.data[token] = 3 * torch.randn(model.config.hidden_size)
    for prompt in ("a", "b", "c", "<mask>"):
        answer = answer_live(
            model, tokenizer, user(prompt), {"max_new_tokens": 16, "seed": 0}, Console(quiet=True)
        ).text
        ids = set(tokenizer(answer, add_special_tokens=False).input_ids)
        assert not ids & {tokenizer.mask_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}


def test_infilling_prints_the_text_filled_in():
    """The prompt itself is what is generated."""
    prompt = "Add 381 and <|mask|> column by column."
    result = CliRunner().invoke(app, ["run", prompt, "--set", "infill=true"])
    assert result.exit_code == 0
    before, after = prompt.split("<|mask|>")
    assert result.stdout.startswith(before) and result.stdout.rstrip().endswith(after)
    assert len(result.stdout.rstrip()) > len(before + after)
