"""Stop strings, criteria and the clock: token by token on the committed prefix of each row."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, PAD, Scripted, padded, speller, table
from probes import answer
from transformers import StoppingCriteria, StoppingCriteriaList

ONE = torch.tensor([[65]])
DECODERS = ("fixed", "threshold", "factor")


def spoken(tokenizer, text, model=None, **options):
    model = model or speller(text, tokenizer)
    options = {"max_new_tokens": 24, "block_length": 4, "return_dict_in_generate": True, **options}
    output = model.generate(ONE, tokenizer=tokenizer, **options)
    return tokenizer.decode(answer(output), skip_special_tokens=True), output


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
@pytest.mark.parametrize("block_length", [1, 3, 4, 64])
def test_stop_strings_end_behind_the_string(tokenizer, decoder, policy, block_length):
    """Inside a block, across two, and with the rest of the block committed already; the ids keep the string."""
    for text, expected in (("abcSTOPdef", "abcSTOP"), ("abcdefSTOPghijkl", "abcdefSTOP"), ("abSTXcd", "abSTXcd")):
        options = {"decoder": decoder, "cache_policy": policy, "block_length": block_length}
        shown, output = spoken(tokenizer, text, stop_strings=["STOP"], **options)
        assert shown == expected
        assert output.finish_reason == ["stop" if "STOP" in text else "eos"]
        assert output.sequences.shape[1] == 1 + len(expected) + ("STOP" not in text)


@given(st.text("aST", max_size=12), st.sampled_from([1, 3, 4, 64]), st.sampled_from(DECODERS))
@settings(max_examples=50)
def test_any_text_stops_where_left_to_right_decoding_would(tokenizer, text, block_length, decoder):
    shown, _ = spoken(tokenizer, text, stop_strings=["STa", "TT"], block_length=block_length, decoder=decoder)
    ends = [text.find(s) + len(s) for s in ("STa", "TT") if s in text]
    assert shown == text[: min(ends, default=len(text))]


def test_nothing_is_computed_behind_a_stop_string(tokenizer):
    model = speller("aSTOP" + "b" * 15, tokenizer)
    spoken(tokenizer, None, model, stop_strings=["STOP"], decoder="threshold", threshold=0.9)
    assert len(model.calls) == 2


def test_rows_stop_on_their_own(tokenizer):
    model = speller("..abSTOPcdef", tokenizer)
    output = model.generate(
        **padded([[65], [65] * 9], pad=tokenizer.pad_token_id), tokenizer=tokenizer, stop_strings="STOP",
        max_new_tokens=12, block_length=4, return_dict_in_generate=True,
    )  # fmt: skip
    assert [tokenizer.decode(answer(output, row)) for row in (0, 1)] == ["..abSTOP", "cdef<eos>"]
    assert output.finish_reason == ["stop", "eos"]


def test_a_string_in_the_prompt_does_not_stop(tokenizer):
    prompt = torch.tensor([tokenizer.encode("STOP ST")])
    model = speller("ab" * 3, tokenizer, prompt=prompt.shape[1])
    ids = model.generate(prompt, tokenizer=tokenizer, stop_strings=["STOP"], max_new_tokens=6)
    assert tokenizer.decode(ids[0, prompt.shape[1] :]) == "ababab"


class AtLength(StoppingCriteria):
    """Ends a row at a given number of ids; notes what it is asked."""

    def __init__(self, length):
        self.length, self.seen = length, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids[0].tolist())
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("block_length", [1, 4, 64])
def test_own_criteria_see_every_prefix_in_turn(decoder, block_length):
    model = Scripted(table((5, 0.9), (6, 0.5), (7, 0.8), (8, 0.7), (9, 0.6)))
    criterion = AtLength(4)
    ids = model.generate(
        torch.tensor([[1]]), stopping_criteria=[criterion], decoder=decoder, block_length=block_length, max_new_tokens=5
    )
    assert ids.tolist() == [[1, 5, 6, 7]]
    assert criterion.seen == [[1, 5], [1, 5, 6], [1, 5, 6, 7]]


def test_criteria_see_the_prompt_as_it_is_under_guidance():
    """A longer negative prompt does not count."""
    model = Scripted(table(*[(5, 0.9)] * 20))
    criterion = AtLength(4)
    ids = model.generate(
        torch.tensor([[1]]), stopping_criteria=StoppingCriteriaList([criterion]), max_new_tokens=8, guidance_scale=1.5,
        negative_prompt_ids=torch.tensor([[1] * 6]),
    )  # fmt: skip
    assert ids.tolist() == [[1, 5, 5, 5]] and criterion.seen[0] == [1, 5]


def test_max_time_is_checked_per_step():
    """A row that is out of time keeps its committed prefix."""
    cells = table((5, 0.9), (6, 0.9), (7, 0.9), (8, 0.9))

    def slow(call):
        time.sleep(0.15)
        return cells[call.position_ids]

    model = Scripted(slow)
    output = model.generate(
        torch.tensor([[1]]), max_time=0.2, max_new_tokens=4, block_length=1, return_dict_in_generate=True
    )
    assert len(model.calls) == 2
    assert output.sequences.tolist() == [[1, 5, 6]] and output.finish_reason == ["max_time"]
    assert output.num_forwards.tolist() == [2]


def test_out_of_time_with_open_positions_in_front():
    """Tokens behind the first open position are no text."""
    cells = table((5, 0.1), (6, 0.9), (7, 0.8), (8, 0.7))

    def slow(call):
        time.sleep(0.15)
        return cells[call.position_ids]

    output = Scripted(slow).generate(
        torch.tensor([[1]]), max_time=0.2, max_new_tokens=4, block_length=4, return_dict_in_generate=True
    )
    assert output.sequences.tolist() == [[1]] and output.finish_reason == ["max_time"]
    assert output.commit_step.shape == output.confidence.shape == (1, 0)


def test_eos_wins_over_a_later_stop(tokenizer):
    """What lies behind an EOS is no text, so nothing in it stops a row."""
    model = speller("ab", tokenizer)
    plain = model.body.script
    stop = torch.tensor(tokenizer.encode("S"))

    def script(call):
        logits = plain(call)
        logits[call.position_ids == 4] = torch.nn.functional.one_hot(stop, logits.shape[-1]).float() * 30
        return logits

    model.body.script = script
    shown, output = spoken(tokenizer, None, model, stop_strings=["S"], max_new_tokens=8, block_length=8)
    assert shown == "ab" and output.finish_reason == ["eos"]


@pytest.mark.parametrize("decoder", DECODERS)
def test_eos(decoder):
    """An EOS with everything before it committed ends the row; one with an open position before it does not."""
    cells = [(5, 0.9), (6, 0.8), (7, 0.7), (EOS, 0.95)] + [(9, 0.9)] * 12
    model = Scripted(table(*cells))
    one_by_one = {"threshold": {"threshold": 0.99}, "factor": {"factor": 0.01, "take_last": False}}
    output = model.generate(
        torch.tensor([[1]]), decoder=decoder, decoder_config=one_by_one.get(decoder), max_new_tokens=16, block_length=4,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert output.sequences.tolist() == [[1, 5, 6, 7, EOS]]
    assert output.num_forwards.tolist() == [len(model.calls)] == [4]
    assert output.tokens_per_forward.tolist() == [0.75]


def test_rows_end_at_their_own_eos():
    cells = [(5, 0.9), (6, 0.8), (EOS, 0.7)] + [(9, 0.9)] * 20
    model = Scripted(table(*cells))
    output = model.generate(**padded([[1], [1] * 4]), max_new_tokens=6, block_length=2, return_dict_in_generate=True)
    assert output.sequences.tolist() == [[PAD] * 3 + [1, 5, 6, EOS] + [PAD] * 3, [1] * 4 + [9] * 6]
    assert output.finish_reason == ["eos", "length"] and output.num_forwards.tolist() == [4, 6]
