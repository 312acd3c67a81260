"""From conversations to replies: chat template, generation, decoding and counting."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from .families import family_of

Conversation = list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Reply:
    """What the model answered to one conversation.

    Attributes:
        text: without special tokens.
        tokens: text tokens, no EOS and no pad.
        forwards: forwards in which the row ran.
        seconds: wall time of the call of generate; rows of one batch share it.
        finish_reason: `"eos"`, `"length"`, `"stop"` or `"max_time"`.
    """

    text: str
    tokens: int
    forwards: int
    seconds: float
    finish_reason: str

    @property
    def tokens_per_forward(self) -> float:
        """Text tokens per forward."""
        return self.tokens / max(self.forwards, 1)

    @property
    def tokens_per_second(self) -> float:
        """Text tokens per second of the call; meaningful for a batch of one."""
        return self.tokens / self.seconds if self.seconds else 0.0


def user(prompt: str, system: str | None = None) -> Conversation:
    """Returns the conversation that begins with `prompt`."""
    opening = [] if system is None else [{"role": "system", "content": system}]
    return [*opening, {"role": "user", "content": prompt}]


def encode(tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Conversation]) -> dict[str, torch.Tensor]:
    """Applies the chat template, and pads on the left.

    A tokenizer without a template takes conversations of a single message, whose text is the prompt.

    Returns:
        `input_ids` and `attention_mask`, each `(B, P)`.

    Raises:
        ValueError: for several messages and no chat template.
    """
    rows = [tokenizer(rendered(tokenizer, c), add_special_tokens=False).input_ids for c in conversations]
    width = max(len(row) for row in rows)
    return {
        "input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def rendered(tokenizer: PreTrainedTokenizerBase, conversation: Conversation) -> str:
    """The text of a prompt, up to where the answer begins. Raises ValueError as [`encode`]."""
    if tokenizer.chat_template is not None:
        return tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)  # type: ignore[return-value]
    if len(conversation) != 1:
        raise ValueError("The tokenizer has no chat template, so it takes one prompt only: no history, no system text.")
    return conversation[0]["content"]


def special_ids(model: Any, tokenizer: PreTrainedTokenizerBase, **options: Any) -> dict[str, set[int]]:
    """Returns the ids of `mask`, `eos` and `pad`, which are no text; `options` are those of generate."""
    config = model.generation_config
    given = {
        **{name: getattr(config, name, None) for name in ("mask_token_id", "logits_shift", "attention")},
        **options,
    }
    found = {"mask": family_of(model, given, tokenizer).mask_token_id}
    for name in ("eos", "pad"):
        option = f"{name}_token_id"
        sources = (options.get(option), getattr(config, option, None), getattr(tokenizer, option, None))
        found[name] = next((value for value in sources if value is not None), None)
    as_set = lambda value: set() if value is None else set(value) if isinstance(value, (list, tuple)) else {value}  # noqa: E731
    return {name: as_set(value) for name, value in found.items()}


def reply(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Conversation],
    *,
    streamer: Any = None,
    **options: Any,
) -> list[Reply]:
    """Generates the next message of every conversation, as one batch; with `infill`, the conversations filled in.

    Args:
        model: with our `generate`.
        tokenizer: of the model.
        conversations: lists of messages, `{"role": ..., "content": ...}`.
        streamer: as for `generate`.
        options: of `generate`.

    Raises:
        ValueError: as `generate`.
    """
    inputs = {name: value.to(model.device) for name, value in encode(tokenizer, conversations).items()}
    begin = time.perf_counter()
    output = model.generate(**inputs, tokenizer=tokenizer, streamer=streamer, return_dict_in_generate=True, **options)
    # With infilling, what is generated lies inside the prompt, and steps are those of the whole sequence.
    first = output.sequences.shape[1] - output.commit_step.shape[1]
    ids = output.sequences[:, first:].tolist()
    seconds = time.perf_counter() - begin
    no_text = set().union(*special_ids(model, tokenizer, **options).values())
    counts = (output.tokens_per_forward * output.num_forwards).round().long().tolist()
    facts = zip(ids, counts, output.num_forwards.tolist(), output.finish_reason, strict=True)
    return [
        Reply(decode(tokenizer, row, no_text), tokens, forwards, seconds, reason)
        for row, tokens, forwards, reason in facts
    ]


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], no_text: set[int]) -> str:
    """Decodes ids without special tokens and without those in `no_text`."""
    return str(tokenizer.decode([i for i in ids if i not in no_text], skip_special_tokens=True))
