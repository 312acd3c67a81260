"""Look-ahead decoding: lossless is lossless, and what is not keeps all other promises."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, counted_forwards
from probes import FINAL, MEMORYLESS, POLICIES, Idling, answer, cases
from promises import RAGGED, SAMPLED
from promises import same_text as same

from dllm_generate import DECODERS, Decoder
from dllm_generate.bundled import load
from dllm_generate.decoders.base import DecoderOutput
from dllm_generate.evaluation.tasks import heldout_problems
from dllm_generate.schedules.blockwise import BlockwiseSchedule
from dllm_generate.text import encode, user


def call(model, inputs, options, **more):
    torch.manual_seed(3)
    return model.generate(**inputs, **{"return_dict_in_generate": True, **options, **more})


@given(cases(decoders=MEMORYLESS), st.integers(1, 6), st.sampled_from([1, 3]), st.booleans())
@settings(max_examples=120)
def test_lossless_is_the_plain_run(llada, case, drafts, unroll, sampled):
    options = {**case.options, **(SAMPLED if sampled else {})}
    plain = call(llada, case.inputs, options)
    ahead = call(llada, case.inputs, options, lookahead={"drafts": drafts}, unroll_steps=unroll)
    same(plain, ahead)
    assert (ahead.num_forwards <= plain.num_forwards).all()


def test_lossless_with_every_decoder_and_policy_saves_forwards(llada):
    saved = 0
    for decoder in MEMORYLESS:
        for policy in POLICIES:
            options = {**decoder, **policy, "max_new_tokens": 12, "block_length": 6}
            plain, ahead = call(llada, RAGGED, options), call(llada, RAGGED, options, lookahead=True)
            same(plain, ahead)
            saved += int((plain.num_forwards - ahead.num_forwards).sum())
    assert saved > 100


@pytest.mark.parametrize("extra", [{"guidance_scale": 1.7}, {"logits_shift": True}, {"cache_implementation": "static"}])
def test_lossless_with(llada, extra):
    for policy in POLICIES:
        options = {"decoder": "fixed", **policy, "max_new_tokens": 10, "block_length": 5, **extra}
        same(call(llada, RAGGED, options), call(llada, RAGGED, options, lookahead=True))


def test_lossless_beside_idle_rows(llada):
    options = {"decoder": "threshold", "threshold": 0.3, "cache_policy": "dual", "max_new_tokens": 9}
    plain = call(llada, RAGGED, options, schedule=BlockwiseSchedule(4))
    same(plain, call(llada, RAGGED, options, schedule=Idling(4, salt=3), lookahead=True))


def test_forwards_are_counted(llada):
    """Those of the model, not the steps that they stand for."""
    options = {"decoder": "fixed", "max_new_tokens": 16, "block_length": 8}
    with counted_forwards(llada) as shapes:
        output = call(llada, {"input_ids": torch.tensor([[3, 1, 4]])}, options, lookahead=True)
    assert len(shapes) == output.num_forwards[0] < 16
    assert output.commit_step[0].sort().values.tolist() == list(range(16))
    # The first forward of a block has nothing to guess from.
    assert shapes[0][0] == 1 and max(shape[0] for shape in shapes) == 5


def test_a_trained_model_takes_less_than_two_thirds_of_the_forwards():
    model, tokenizer = load()
    prompts = [user(problem.prompt) for problem in heldout_problems(n=1)]
    options = {"decoder": "fixed", "max_new_tokens": 64}
    plain, ahead = (call(model, encode(tokenizer, prompts), options, lookahead=value) for value in (False, True))
    same(plain, ahead)
    assert 3 * ahead.num_forwards.sum() < 2 * plain.num_forwards.sum()


@given(cases(decoders=FINAL), st.integers(1, 6))
@settings(max_examples=80)
def test_without_loss_of_other_promises(llada, case, drafts):
    """Prompt, length, end, no mask left, and a row is its single run."""
    more = {"lookahead": {"drafts": drafts, "lossless": False}}
    output = call(llada, case.inputs, case.options, **more)
    width = max(map(len, case.prompts))
    for row, prompt in enumerate(case.prompts):
        assert output.sequences[row, width - len(prompt) : width].tolist() == prompt
        assert MASK not in answer(output, row)
        assert output.num_forwards[row] <= case.options["max_new_tokens"]
        alone = call(llada, case.single(row), case.options, **more)
        assert answer(output, row) == answer(alone)
        assert output.num_forwards[row] == alone.num_forwards[0]


def test_guesses_that_count_save_forwards(llada):
    options = {"decoder": "threshold", "threshold": 0.3, "max_new_tokens": 24, "block_length": 24}
    plain = call(llada, RAGGED, options)
    ahead = call(llada, RAGGED, options, lookahead={"drafts": 6, "lossless": False})
    assert ahead.num_forwards.sum() < plain.num_forwards.sum()


def test_stop_strings_and_streams_are_those_of_the_plain_run():
    from transformers import TextStreamer

    model, tokenizer = load()
    inputs = encode(tokenizer, [user(heldout_problems(["add"], n=1)[0].prompt)])

    class Kept(TextStreamer):
        def __init__(self):
            super().__init__(tokenizer, skip_prompt=True)
            self.pieces = []

        def on_finalized_text(self, text, stream_end=False):
            self.pieces.append(text)

    texts = []
    for lookahead in (False, True):
        streamer = Kept()
        options = {"max_new_tokens": 64, "stop_strings": ["\n"], "tokenizer": tokenizer, "streamer": streamer}
        output = call(model, inputs, {"decoder": "fixed", **options}, lookahead=lookahead)
        texts.append((output.sequences.tolist(), output.finish_reason, "".join(streamer.pieces)))
    assert texts[0] == texts[1] and texts[0][1] == ["stop"] and texts[0][2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": 3}, "`lookahead` is 3"),
        ({"lookahead": {"branches": 3}}, "branches"),
        ({"lookahead": {"drafts": 0}}, r"`lookahead\['drafts'\]` is 0"),
        ({"lookahead": {"lossless": 1}}, r"`lookahead\['lossless'\]` is 1"),
        ({"lookahead": True, "decoder": "credit"}, r"must be False with `decoder` 'credit'"),
        ({"lookahead": True, "decoder": "klass"}, r"must be False with `decoder` 'klass'"),
        ({"lookahead": {"lossless": False}, "decoder": "remasking"}, "must be off with `decoder` 'remasking'"),
        ({"lookahead": True, "decoder": "threshold", "smoothing": True}, "must be off with `smoothing`"),
    ],
)
def test_what_cannot_work_says_so_before_the_first_forward(llada, options, message):
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=message):
        llada.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=4, **options)
    assert not shapes
    assert llada.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=4).shape == (1, 7)


def test_a_decoder_of_ones_own_is_not_taken_for_memoryless(llada):
    @DECODERS.register("forgetful")
    @dataclasses.dataclass(frozen=True)
    class Forgetful(Decoder):
        def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
            tokens, confidence = state.predict(scores)
            return DecoderOutput(tokens, confidence, torch.zeros_like(open_mask))

    try:
        with pytest.raises(ValueError, match="remembers"):
            llada.generate(torch.tensor([[3]]), max_new_tokens=4, decoder="forgetful", lookahead=True)
    finally:
        del DECODERS.parts["forgetful"]
