"""A small lossless tokenizer: every byte, every digit on its own, and a given list of whole pieces."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|pad|>", "<|eos|>", "<|mask|>", "<|user|>", "<|assistant|>", "<|bos|>", "<|system|>", "<|sep|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{ '<|assistant|>' + message['content'] + '<|eos|>' }}{% endgeneration %}"
    "{% else %}{{ '<|system|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(pieces: Sequence[str], vocab_size: int = 512, max_length: int = 1024) -> PreTrainedTokenizerFast:
    """Builds a Unigram tokenizer over bytes which prefers the fewest pieces.

    Any UTF-8 text survives encoding and decoding. Unused rows of the vocabulary stay reserved, which makes
    its size round.

    Args:
        pieces: texts that become one token wherever they occur; none of them holds a digit.
        vocab_size: rows of the embedding. Default 512.
        max_length: context length written into the tokenizer. Default 1024.

    Returns:
        A fast tokenizer with mask, eos, pad and bos token and a chat template.

    Raises:
        ValueError: the pieces do not fit into the vocabulary.
    """
    byte_symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    to_symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    wholes = ["".join(symbols for symbols, _ in to_symbols.pre_tokenize_str(piece)) for piece in pieces]
    entries = [*SPECIAL_TOKENS, *byte_symbols, *(w for w in dict.fromkeys(wholes) if len(w) > 1)]
    if len(entries) > vocab_size:
        raise ValueError(f"{len(entries)} tokens do not fit into vocab_size = {vocab_size}")
    entries += [f"<|reserved{i}|>" for i in range(vocab_size - len(entries))]
    # One point per token makes the fewest tokens win; the bonus for length settles ties, always in the same way.
    scores = [(e, -1000.0 if e.startswith("<|") else -10.0 + 0.001 * len(e) ** 2) for e in entries]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = to_symbols
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|eos|>",
        mask_token="<|mask|>",
        bos_token="<|bos|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|system|>", "<|sep|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
