"""Live drafts."""

import io

import torch
from rich.console import Console

from dllm_generate.bundled import load
from dllm_generate.cli.live import LiveDrafts
from dllm_generate.cli.run import answer_live
from dllm_generate.text import special_ids, user


def streamer_for(folder):
    model, tokenizer = load(folder, device="cpu")
    console = Console(file=io.StringIO(), force_terminal=True)
    return LiveDrafts(tokenizer, special_ids(model, tokenizer), console), tokenizer


def test_committed_tokens_open_positions_and_what_is_behind_an_eos(folder):
    live, tokenizer = streamer_for(folder)
    mask, eos = tokenizer.mask_token_id, tokenizer.eos_token_id
    ids = lambda text: tokenizer(text, add_special_tokens=False).input_ids  # noqa: E731
    live.put(torch.tensor([ids("prompt")]))
    live.put(torch.tensor(ids("done ")))
    live.put_draft(torch.tensor([mask, *ids("ab"), mask, mask, eos, *ids("junk")]))
    text = live.render()
    assert text.plain == "done ·ab··"
    assert [str(span.style) for span in text.spans] == ["bold", "dim", "dim italic", "dim"]
    live.put(torch.tensor(ids("xab")))
    assert live.render().plain == "done xab··"
    live.end()
    live.end()


def test_a_terminal_sees_drafts_and_gets_the_same_answer(folder):
    model, tokenizer = load(folder, device="cpu")
    options = {"max_new_tokens": 12, "block_length": 4, "seed": 0}
    terminal = Console(file=io.StringIO(), force_terminal=True)
    shown = answer_live(model, tokenizer, user("hello"), options, terminal)
    plain = answer_live(model, tokenizer, user("hello"), options, Console(file=io.StringIO()))
    assert shown.text == plain.text and shown.forwards == plain.forwards
    assert terminal.file.getvalue()
