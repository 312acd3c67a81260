"""Rendering of prompts and answers, and batches of them."""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ..registry import require
from ..text import rendered, user

# Ids of a prompt and of its answer, as `encode` returns them.
Example = tuple[list[int], list[int]]
# `(seed, step, count) -> count` examples.
MakeExamples = Callable[[int, int, int], list[Example]]


@dataclass(frozen=True)
class Batch:
    """B rows of `prompt, answer, eos, eos ...`, starting in column 0.

    Args:
        input_ids: (B, T) ids, filled up with EOS.
        prompt_lengths: (B,) tokens of the prompt, the assistant marker included.
        answer_lengths: (B,) tokens of the answer, its first EOS included.
        canvas_lengths: (B,) tokens behind the prompt that count: the answer and some EOS padding.
        seed: where the noise of this batch starts.
    """

    input_ids: Tensor
    prompt_lengths: Tensor
    answer_lengths: Tensor
    canvas_lengths: Tensor
    seed: int = 0

    @property
    def rows(self) -> int:
        return self.input_ids.shape[0]

    @property
    def width(self) -> int:
        return self.input_ids.shape[1]

    def position_ids(self) -> Tensor:
        """(B, T) positions, counted from 0."""
        return torch.arange(self.width).repeat(self.rows, 1)

    def answer_cells(self) -> Tensor:
        """(B, T) index of each column within the answer; negative in the prompt."""
        return self.position_ids() - self.prompt_lengths[:, None]

    def real(self) -> Tensor:
        """(B, T) bool: prompt and canvas, not what lies behind."""
        return self.answer_cells() < self.canvas_lengths[:, None]

    def trimmed(self, tail: int) -> "Batch":
        """The same rows with at most `tail` cells of EOS padding behind each answer."""
        canvas = torch.minimum(self.canvas_lengths, self.answer_lengths + tail)
        width = int((self.prompt_lengths + canvas).max())
        return replace(self, input_ids=self.input_ids[:, :width], canvas_lengths=canvas)


def encode(
    tokenizer: PreTrainedTokenizerBase, prompt: str | list[dict[str, str]], answer: str
) -> tuple[list[int], list[int]]:
    """Ids of a chat, split into what is given and what the model writes.

    The answer ends as the chat template ends a message of the assistant, and then with one EOS.

    Args:
        tokenizer: without a chat template it takes a prompt of one message, whose text is the prompt.
        prompt: the user's text, or all messages before the answer.
        answer: the assistant's text.

    Returns:
        Prompt ids with the generation prompt, and answer ids with one EOS at the end.

    Raises:
        ValueError: several messages and no chat template; a prompt without any token.
    """
    chat = user(prompt) if isinstance(prompt, str) else prompt
    text, suffix = rendered(tokenizer, chat), ""
    if tokenizer.chat_template is not None:
        whole = str(tokenizer.apply_chat_template([*chat, {"role": "assistant", "content": answer}], tokenize=False))
        # Some templates trim a message. Others rewrite a finished one; then the answer ends with EOS alone.
        answer = next((part for part in (answer, answer.strip()) if whole.startswith(text + part)), answer)
        suffix = whole.removeprefix(text + answer).rstrip() if whole.startswith(text + answer) else ""
    prompt_ids, answer_ids = tokenizer([text, answer + suffix], add_special_tokens=False).input_ids
    if not prompt_ids:
        raise ValueError(f"The prompt is {prompt!r}, but must have a token.")
    end = [tokenizer.eos_token_id]
    return prompt_ids, answer_ids if answer_ids[-1:] == end else answer_ids + end


def collate(examples: Sequence[Example], eos_token_id: int, rng: random.Random, max_length: int | None = None) -> Batch:
    """Pads examples with EOS to one width, each with a canvas of random length.

    A generator never knows how long an answer becomes, so the model meets canvases that fit, that are a little too long
    and, seldom, that are far too long.

    Args:
        examples: pairs as `encode` returns them.
        eos_token_id: id of the padding.
        rng: draws the canvas lengths and the seed of the batch.
        max_length: no canvas ends behind this column, unless an example does. Default: no limit.

    Returns:
        A `Batch` with as many rows as examples.
    """
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    draw = rng.random()
    extra = rng.randint(0, 224) if draw < 0.04 else rng.randint(0, 48) if draw < 0.35 else rng.randint(0, 4)
    width = longest + extra if max_length is None else max(longest, min(longest + extra, max_length))
    rows, canvases = [], []
    for prompt, answer in examples:
        room = width - len(prompt)
        canvases.append(room if rng.random() < 0.5 else rng.randint(len(answer), room))
        rows.append(prompt + answer + [eos_token_id] * (room - len(answer)))
    lengths = torch.tensor([[len(prompt), len(answer)] for prompt, answer in examples])
    return Batch(torch.tensor(rows), lengths[:, 0], lengths[:, 1], torch.tensor(canvases), rng.getrandbits(40))


class ExampleBatches(Dataset):
    """Random access to the batches of an endless stream: batch `i` depends on `seed` and `i` alone.

    So a resumed run goes on with exactly the batches that it would have seen. Examples of one optimizer step are sorted
    by their cost before they are split into batches, which keeps padding small.

    Args:
        make: `(seed, step, count) -> count` pairs as `encode` returns them; a function of its arguments alone.
        eos_token_id: id of the padding.
        steps: number of optimizer steps.
        rows: examples per optimizer step, over all processes.
        parts: batches per optimizer step (gradient accumulation times processes); divides `rows`.
        seed: seed of the stream.
        max_length: see `collate`.

    Raises:
        ValueError: `parts` does not divide `rows`.
    """

    def __init__(
        self,
        make: MakeExamples,
        eos_token_id: int,
        steps: int,
        rows: int = 64,
        parts: int = 4,
        seed: int = 0,
        max_length: int | None = None,
    ):
        require(parts >= 1 and rows % parts == 0, "parts", parts, f"a divisor of `rows`, which is {rows}")
        self.max_length = max_length
        self.make, self.eos_token_id, self.steps = make, eos_token_id, steps
        self.rows, self.parts, self.seed = rows, parts, seed
        self._step = functools.lru_cache(2)(self._sorted_examples)

    def _sorted_examples(self, step: int) -> list[Example]:
        examples = self.make(self.seed, step, self.rows)
        return sorted(examples, key=lambda pair: len(pair[0]) + 3 * len(pair[1]))

    def __len__(self) -> int:
        return self.steps * self.parts

    def __getitem__(self, index: int) -> Batch:
        step, part = divmod(index, self.parts)
        size = self.rows // self.parts
        rng = random.Random(f"batch-{self.seed}-{index}")
        return collate(self._step(step)[part * size : (part + 1) * size], self.eos_token_id, rng, self.max_length)
