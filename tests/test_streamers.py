"""Streaming: final tokens once and in order, drafts in between, stop strings held back, one end()."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, PAD, Scripted, byte_tokenizer, padded, speller, table
from probes import answer, cases
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from dllm_generate import RowStreamer
from dllm_generate.streamers import StopStrings

ONE = torch.tensor([[65]])


class Log(BaseStreamer):
    """Notes what it is sent."""

    def __init__(self):
        self.puts, self.ends = [], 0

    def put(self, value):
        self.puts.append(value.clone())

    def end(self):
        self.ends += 1

    @property
    def tokens(self):
        return [int(token) for value in self.puts[1:] for token in value]


class Drafts(Log):
    def __init__(self):
        super().__init__()
        self.drafts = []

    def put_draft(self, value):
        self.drafts.append((len(self.tokens), value.tolist()))


def spoken(tokenizer, text, **options):
    """What a user of a text streamer reads, and the text that generate returns."""
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=20)
    model = speller(text, tokenizer)
    options = {"max_new_tokens": 40, "block_length": 4, "tokenizer": tokenizer, **options}
    ids = model.generate(ONE, streamer=streamer, **options)
    shown = "".join(streamer)
    returned = tokenizer.decode(ids[0, 1:], skip_special_tokens=True)
    return shown, returned


@given(cases(max_rows=1))
@settings(max_examples=40)
def test_puts_are_the_answer_in_order_and_once(llada, case):
    streamer = Log()
    output = llada.generate(**case.inputs, **case.options, streamer=streamer)
    ends = case.options["eos_token_id"]
    tokens = answer(output)
    text = tokens[:-1] if output.finish_reason == ["eos"] else tokens
    assert streamer.puts[0].tolist() == case.prompts
    assert all(value.dim() == 1 for value in streamer.puts[1:])
    assert streamer.tokens == text and EOS not in text and ends is not None
    assert streamer.ends == 1


def test_tokens_come_block_by_block(tokenizer):
    """Nothing of a block is sent before all of it is final, and then at once."""
    seen = []

    class Watch(Log):
        def put(self, value):
            super().put(value)
            seen.append((len(model.calls), len(self.tokens)))

    model = speller("abcdefgh", tokenizer)
    model.generate(ONE, streamer=Watch(), max_new_tokens=8, block_length=4)
    assert seen == [(0, 0)] + [(4, n) for n in (1, 2, 3, 4)] + [(8, n) for n in (5, 6, 7, 8)]


def test_drafts_show_the_block_in_work():
    streamer, mask = Drafts(), 63
    model = Scripted(table((5, 0.5), (6, 0.9), (7, 0.95), (8, 0.6)))
    model.generate(torch.tensor([[1]]), streamer=streamer, max_new_tokens=4, block_length=2)
    assert streamer.drafts[0] == (0, [mask, 6])
    assert streamer.drafts[1][1][-1] in (mask, 8) and streamer.drafts[2] == (2, [7, mask])
    assert streamer.tokens == [5, 6, 7, 8]


@pytest.mark.parametrize("block_length", [1, 3, 4, 64])
@pytest.mark.parametrize("text", ["abcdefghij", "né ünïcode €", "", "ab\ncd", "日本語 text"])
def test_the_stream_is_the_text(tokenizer, text, block_length):
    shown, returned = spoken(tokenizer, text, block_length=block_length)
    assert shown.replace("<eos>", "") == returned == text


@pytest.mark.parametrize("block_length", [1, 2, 3, 4, 5, 6, 64])
@pytest.mark.parametrize(
    ("text", "strings", "before"),
    [
        ("abcSTOPdef", ["STOP"], "abc"),
        ("abSTXcdSTOPde", ["STOP"], "abSTXcd"),
        ("SSTSTOP", ["STOP"], "SST"),
        ("abcdefST", ["STOP"], "abcdefST"),
        ("STOP", "STOP", ""),
        ("xaby", ["ab", "b"], "x"),
        ("one\n\ntwo", ["\n\n"], "one"),
        ("é€STOP!", ["STOP"], "é€"),
    ],
)
def test_stop_strings_are_never_shown(tokenizer, text, strings, before, block_length):
    """Held back across blocks, cut, and released when it was none; the ids keep the stop string."""
    shown, returned = spoken(tokenizer, text, stop_strings=strings, block_length=block_length)
    assert shown == before
    strings = [strings] if isinstance(strings, str) else strings
    found = [text.find(s) + len(s) for s in strings if s in text]
    assert returned == text[: min(found, default=len(text))]


@given(st.text("aST", max_size=10), st.sampled_from([1, 3, 4, 64]))
@settings(max_examples=60)
def test_any_text_with_a_stop_string(tokenizer, text, block_length):
    shown, _ = spoken(tokenizer, text, stop_strings=["STa", "TT"], block_length=block_length)
    ends = [text.find(s) for s in ("STa", "TT") if s in text]
    finished = {s: text.find(s) + len(s) for s in ("STa", "TT") if s in text}
    assert shown == (text[: text.find(min(finished, key=finished.get))] if ends else text)


def test_a_token_that_holds_more_than_the_stop_string():
    """The text in front of a stop string that begins inside a token is shown."""
    tokenizer = byte_tokenizer(merges=(("x", "S"), ("T", "y")))
    assert len(tokenizer.encode("abxSTycd")) == 6
    for block_length in (1, 2, 3, 4, 64):
        shown, returned = spoken(tokenizer, "abxSTycd", stop_strings=["ST"], block_length=block_length)
        assert (shown, returned) == ("abx", "abxSTy")


@pytest.mark.parametrize("error", ["input", "option", "logits", "streamer"])
def test_end_once_also_on_errors(tokenizer, error):
    model, streamer = speller("abcdef", tokenizer), Log()
    inputs, options = ONE, {"max_new_tokens": 6, "block_length": 2}
    if error == "input":
        inputs = torch.zeros(1, 0, dtype=torch.long)
    elif error == "option":
        options["threshold"] = 2
    elif error == "logits":
        model.body.script = lambda call: torch.full((*call.input_ids.shape, len(tokenizer)), torch.nan)
    else:
        streamer.put = lambda value: (_ for _ in ()).throw(ValueError("closed"))
    with pytest.raises(ValueError):
        model.generate(inputs, streamer=streamer, **options)
    assert streamer.ends == 1
    assert streamer.tokens == []


def test_nothing_of_a_failed_step_is_shown(tokenizer):
    """Logits that turn NaN in the second block: the first block is all that a reader sees."""
    model, streamer = speller("abcdef", tokenizer), Log()
    plain = model.body.script
    model.body.script = lambda call: plain(call) * (torch.nan if call.number else 1)
    with pytest.raises(ValueError, match="NaN"):
        model.generate(ONE, streamer=streamer, decoder="threshold", threshold=0.1, max_new_tokens=6, block_length=3)
    assert tokenizer.decode(streamer.tokens) == "abc"
    assert streamer.ends == 1


def test_batches_need_a_row_tagged_streamer(llada, tokenizer):
    two = torch.tensor([[1], [2]])
    for streamer in (TextStreamer(tokenizer), Log()):
        with pytest.raises(ValueError, match=r"takes one row, but the batch has 2 .*RowStreamer"):
            llada.generate(two, streamer=streamer, max_new_tokens=3)
    with pytest.raises(ValueError, match="takes one row, but the batch has 3"):
        llada.generate(two[:1], streamer=Log(), do_sample=True, num_return_sequences=3, max_new_tokens=3)


@pytest.mark.parametrize("block_length", [2, 3, 64])
def test_row_streamer(tokenizer, block_length):
    """Every row's text, tagged, with one end each; rows end at different times."""
    model, pieces, ends = speller("....abcdefSTOPgh", tokenizer), {}, []

    def on_text(row, text, end):
        pieces[row] = pieces.get(row, "") + text
        ends.extend([row] * end)

    inputs = padded([[65], [65] * 5], pad=tokenizer.pad_token_id)
    model.generate(
        **inputs, streamer=RowStreamer(tokenizer, on_text), tokenizer=tokenizer, stop_strings=["STOP"],
        max_new_tokens=12, block_length=block_length,
    )  # fmt: skip
    assert pieces == {0: "....abcdefST", 1: "abcdef"}
    assert sorted(ends) == [0, 1]


def test_row_streamer_flushes_on_errors_and_shows_prompts(tokenizer):
    texts, ends = {}, []

    def on_text(row, text, end):
        texts[row] = texts.get(row, "") + text
        ends.extend([row] * end)

    model = speller("abcdef", tokenizer)
    plain = model.body.script
    model.body.script = lambda call: plain(call) * (torch.nan if call.number > 2 else 1)
    with pytest.raises(ValueError, match="NaN"):
        model.generate(
            torch.tensor([[65], [66]]), streamer=RowStreamer(tokenizer, on_text, skip_prompt=False), max_new_tokens=6,
            block_length=2,
        )  # fmt: skip
    a, b = tokenizer.decode([65]), tokenizer.decode([66])
    assert texts == {0: a + "ab", 1: b + "ab"} and sorted(ends) == [0, 1]


def test_a_consumer_thread_ends_with_the_call(tokenizer):
    """A consumer of an iterator streamer does not hang when the call fails in its own thread."""
    streamer = TextIteratorStreamer(tokenizer, timeout=20)
    model = speller("abc", tokenizer)
    failed = []

    def call():
        try:
            model.generate(ONE, streamer=streamer, decoder="threshold", threshold=3, max_new_tokens=3)
        except ValueError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert "".join(streamer) == ""
    thread.join()
    assert len(failed) == 1 and PAD


def test_a_stop_string_whose_bytes_come_one_by_one_is_held_back():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("ab日本c", add_special_tokens=False)
    held = StopStrings(tokenizer, ["日本"])
    shown = [token for token_id in ids for token in held.feed([token_id])] + held.finish()
    assert tokenizer.decode(shown) == "ab"
    held = StopStrings(tokenizer, ["zz"])
    shown = [token for token_id in ids for token in held.feed([token_id])] + held.finish()
    assert tokenizer.decode(shown) == "ab日本c"
