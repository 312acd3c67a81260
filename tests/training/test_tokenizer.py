"""The tokenizer of the bundled model."""

import pytest

from dllm_generate.evaluation.vocabulary import PIECES
from dllm_generate.training.data import encode
from dllm_generate.training.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(PIECES)


TEXTS = ["Grüße, 你好 🤖", "  two  spaces\n\ttab ", "x" * 50, "1234567890", "", "def f(x):\r\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_pieces_are_single_tokens_and_digits_stand_alone(tokenizer):
    assert len(tokenizer) == 512
    for piece in PIECES:
        assert len(tokenizer(piece).input_ids) == 1
    assert len(tokenizer("2024").input_ids) == 4


def test_special_tokens(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id) == (0, 1, 2)
    assert tokenizer("<|mask|><|eos|>").input_ids == [2, 1]
    assert tokenizer.decode([2, 1, 0], skip_special_tokens=True) == ""


def test_chat_template_is_the_training_format(tokenizer):
    prompt, answer = encode(tokenizer, "Hi 7", "ok")
    assert tokenizer.decode(prompt + answer) == "<|user|>Hi 7<|assistant|>ok<|eos|>"
    turns = [{"role": "user", "content": "Hi 7"}, {"role": "assistant", "content": "ok"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "<|user|>Hi 7<|assistant|>ok<|eos|>"


def test_saved_tokenizer_loads(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "Add 12 and 34 column by column."
    assert loaded(text).input_ids == tokenizer(text).input_ids
    assert loaded.chat_template == tokenizer.chat_template
    assert (loaded.mask_token_id, loaded.eos_token_id, loaded.pad_token_id) == (2, 1, 0)


def test_too_many_pieces_are_an_error():
    with pytest.raises(ValueError, match="vocab_size"):
        build_tokenizer([f"{chr(97 + i // 26)}{chr(97 + i % 26)}x" for i in range(300)])
