"""A saved model with a chat template, and the command line."""

import pytest
from models import byte_tokenizer, tiny_llada
from typer.testing import CliRunner

from dllm_generate.cli import app

TEMPLATE = (
    "{% for m in messages %}{{ '[' + m['role'][0] + ']' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random model in a folder."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    tiny_llada(vocabulary=len(tokenizer), **ids).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture
def invoke(folder):
    """Runs a command with the saved model."""

    def call(command, *arguments, text=None):
        return CliRunner().invoke(app, [command, "--model", folder, *arguments], input=text)

    return call
