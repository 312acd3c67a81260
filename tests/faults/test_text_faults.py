"""Faults of EOS, streaming, infilling, bans and outputs that users of other tools have reported; by their numbers."""

import pytest
import torch
from models import EOS, EOT, MASK, PAD, Scripted, counted_forwards, padded, row_of_logits, speller, table
from transformers import LogitsProcessorList, NoBadWordsLogitsProcessor, TextIteratorStreamer

DECODERS = ("fixed", "threshold", "factor")
ONE = torch.tensor([[1]])


def test_b001_outputs_are_stated_or_refused(llada):
    output = llada.generate(ONE, max_new_tokens=1, return_dict_in_generate=True, output_scores=True)
    assert output.scores.shape == (1, 1) and 0 < output.scores[0, 0] <= 1
    for option in ("output_logits", "output_attentions", "output_hidden_states"):
        with pytest.raises(ValueError, match=f"`{option}` is True"):
            llada.generate(ONE, max_new_tokens=1, return_dict_in_generate=True, **{option: True})
    with pytest.raises(ValueError, match="at least one token"):
        llada.generate(ONE[:, :0], max_new_tokens=1)
    assert torch.equal(llada.generate(ONE, max_new_tokens=1), output.sequences)


@pytest.mark.parametrize("decoder", DECODERS)
def test_b015_banned_tokens(decoder):
    """Structural ids that the model prefers never appear; the confidence is that after the ban."""
    banned = [EOT, MASK, PAD, 0, 1]
    row = row_of_logits(9, 0.2)
    row[banned] = row[9] + 2
    model = Scripted(row.repeat(12, 1))
    output = model.generate(
        ONE, decoder=decoder, max_new_tokens=8, suppress_tokens=banned, return_dict_in_generate=True
    )
    assert output.sequences[0, 1:].tolist() == [9] * 8
    row[banned] = -torch.inf
    torch.testing.assert_close(output.confidence, row.softmax(-1)[9].expand(1, 8))
    with pytest.raises(ValueError, match=r"every token is banned, at an open position of row \[0\]"):
        model.generate(ONE, decoder=decoder, max_new_tokens=8, suppress_tokens=list(range(64)))


@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
def test_b017_nothing_is_computed_behind_a_final_eos(policy):
    cells = [(5, 0.9), (6, 0.8), (7, 0.7), (EOS, 0.6)] + [(9, 0.95)] * 12
    options = {"max_new_tokens": 16, "block_length": 4, "cache_policy": policy, "return_dict_in_generate": True}
    model = Scripted(table(*cells))
    output = model.generate(ONE, **options)
    assert output.sequences.tolist() == [[1, 5, 6, 7, EOS]] and len(model.calls) == 4
    late = Scripted(table(*cells))
    full = late.generate(ONE, **options, schedule_config={"early_stop": False})
    assert torch.equal(full.sequences, output.sequences) and len(late.calls) == 16
    both = Scripted(table(*cells)).generate(**padded([[1], [1] * 6]), **options)
    assert both.sequences[0, 6:].tolist() == [5, 6, 7, EOS] + [PAD] * 12
    assert both.num_forwards.tolist() == [4, 16] and both.finish_reason == ["eos", "length"]


def test_b017_an_eos_with_masks_before_it_does_not_stop():
    model = Scripted(table((5, 0.5), (6, 0.4), (EOS, 0.9), (9, 0.3)))
    output = model.generate(ONE, max_new_tokens=4, block_length=4, return_dict_in_generate=True)
    assert output.sequences.tolist() == [[1, 5, 6, EOS]] and output.commit_step.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("block_length", [4, 64])
def test_b019_a_flood_of_eos(decoder, block_length):
    """EOS likely everywhere: `min_new_tokens` forbids it, `postpone_eos` lets the text come first."""
    row = row_of_logits(EOS, 0.55)
    row[9] = row[EOS] - 0.5
    model = Scripted(row.repeat(20, 1))
    options = {"decoder": decoder, "block_length": block_length, "max_new_tokens": 12}
    assert model.generate(ONE, **options).tolist() == [[1, EOS]]
    assert model.generate(ONE, **options, min_new_tokens=7).tolist() == [[1] + [9] * 7 + [EOS]]
    text_first = Scripted(table(*[(9, 0.4)] * 6, *[(EOS, 0.9)] * 6))
    late = {"return_dict_in_generate": True, "schedule_config": {"early_stop": False}}
    plain, postponed = (
        text_first.generate(ONE, **options, decoder_config=config, **late)
        for config in (None, {"postpone_eos": True})
    )  # fmt: skip
    assert postponed.sequences.tolist() == plain.sequences.tolist() == [[1] + [9] * 6 + [EOS]]
    if block_length == 64 and decoder != "threshold":
        order = postponed.commit_step[0].tolist()
        assert max(order[:6]) <= order[6] and plain.commit_step[0, 6] <= plain.commit_step[0, :6].max()


def test_b055_infilling_keeps_the_suffix():
    """An EOS wanted in the middle is no stop there; fixed parts are bit-identical."""
    wants_eos = row_of_logits(EOS, 0.8)
    wants_eos[9] = wants_eos[EOS] - 1
    model = Scripted(wants_eos.repeat(8, 1))
    ids = model.generate(torch.tensor([[1, 2, MASK, MASK, MASK, MASK, 7, 8]]), infill=True)
    assert ids.tolist() == [[1, 2, 9, 9, 9, 9, 7, 8]]


@pytest.mark.parametrize("decoder", DECODERS)
def test_b067_streams_are_append_only_text(tokenizer, decoder):
    """Blocks of four; a stop string and a three-byte character across borders, and a false prefix."""
    for text, shown in (("abcSTOPdef", "abc"), ("ab€STX€cd", "ab€STX€cd"), ("abSTXSTSTOPx", "abSTXST")):
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=20)
        model = speller(text, tokenizer)
        ids = model.generate(
            torch.tensor([[65]]), streamer=streamer, tokenizer=tokenizer, stop_strings=["STOP"], block_length=4,
            max_new_tokens=24, decoder=decoder,
        )  # fmt: skip
        pieces = list(streamer)
        assert "".join(pieces) == shown and not any("\ufffd" in piece for piece in pieces)
        assert tokenizer.decode(ids[0, 1:], skip_special_tokens=True) == text[: len(shown)] + "STOP" * (shown != text)
        assert len([piece for piece in pieces if piece]) > 1, "it comes in pieces"


def test_b071_processors_that_need_an_order(llada):
    for option in ({"prefix_allowed_tokens_fn": lambda row, ids: [1]}, {"no_repeat_ngram_size": 2}):
        with counted_forwards(llada) as shapes, pytest.raises(ValueError, match="left-to-right order"):
            llada.generate(ONE, max_new_tokens=4, **option)
        assert not shapes
    plain = llada.generate(ONE, max_new_tokens=6)
    ban = LogitsProcessorList([NoBadWordsLogitsProcessor([[int(plain[0, 1])]])])
    assert int(plain[0, 1]) not in llada.generate(ONE, max_new_tokens=6, logits_processor=ban)[0, 1:]
