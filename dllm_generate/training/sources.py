"""Where the examples of a training run come from."""

import functools
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..evaluation.prompts import is_text, numbered_lines
from ..evaluation.tasks import LONG_LEVEL, TASKS, training_problems
from ..families.base import Family
from ..registry import Registry, is_int, is_number, require
from ..text import Conversation, user
from .data import Example, ExampleBatches, MakeExamples, encode

logger = logging.get_logger(__name__)


class Source(ABC):
    """Base of the sources: a frozen dataclass decorated with `register_source`, whose fields are its settings."""

    name: ClassVar[str]

    def read(self) -> None:
        """Reads and checks what there is to read, before a model is loaded. Raises ValueError and OSError."""

    def validate(self, family: Family | None, vocabulary: int) -> None:
        """Raises ValueError if a model cannot learn from it.

        Args:
            family: of the model; None where it is not known.
            vocabulary: number of ids that the model takes.
        """

    @abstractmethod
    def examples(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> MakeExamples:
        """Returns what makes the examples of a step; none is longer than `max_length` tokens."""

    def batches(
        self, tokenizer: PreTrainedTokenizerBase, *, steps: int, rows: int, parts: int, seed: int, max_length: int
    ) -> ExampleBatches:
        """Returns all batches of a run; the arguments are those of a recipe."""
        make = self.examples(tokenizer, max_length)
        return ExampleBatches(make, tokenizer.eos_token_id, steps, rows, parts, seed, max_length)


SOURCES: Registry[Source] = Registry("data", "data", "dllm_generate.training", Source)
register_source = SOURCES.register


@register_source("tasks")
@dataclass(frozen=True)
class TaskSource(Source):
    """Endless new problems of the bundled tasks, none of them from the held-out split.

    Args:
        tasks: names, or a dict from name to relative frequency. Default: those with short answers, equally often.
        level: 0 (short answers) to 3 (long ones). Default 3.
        seed: of the problems. Default: the recipe's.

    Raises:
        ValueError: for an unknown task, a weight that is no positive number, and another level or seed.
    """

    tasks: Sequence[str] | dict[str, float] | None = None
    level: int = LONG_LEVEL
    seed: int | None = None

    def __post_init__(self) -> None:
        tasks, known = self.tasks, f"names of tasks, or a dict of positive weights for them, of {list(TASKS)}"
        names = list(tasks) if isinstance(tasks, (list, tuple, dict)) else []
        good = tasks is None or (len(names) > 0 and all(name in list(TASKS) for name in names))
        weights = tasks.values() if isinstance(tasks, dict) else ()
        require(good and all(is_number(w) and w > 0 for w in weights), "tasks", tasks, known)
        level = self.level
        require(is_int(level) and 0 <= level <= LONG_LEVEL, "level", level, f"an int from 0 to {LONG_LEVEL}")
        seed = self.seed
        require(seed is None or (is_int(seed) and seed >= 0), "seed", seed, "an int of at least 0, or null")

    def examples(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> MakeExamples:
        def make(seed: int, step: int, count: int) -> list[Example]:
            own = seed if self.seed is None else self.seed
            problems = training_problems(own * 10_000_000 + step, self.tasks, self.level)
            pairs = (encode(tokenizer, problem.prompt, problem.answer) for problem in problems)
            fitting = (pair for pair in pairs if _length(pair) <= max_length)
            return [pair for pair, _ in zip(fitting, range(count), strict=False)]

        # A limit that nothing fits would be looked for in vain for ever.
        first = (encode(tokenizer, p.prompt, p.answer) for p in training_problems(0, self.tasks, self.level))
        _some_fit([pair for pair, _ in zip(first, range(64), strict=False)], max_length)
        return make


class Conversations(Source):
    """Base of the sources that hold a number of conversations: every epoch shows each of them once."""

    @functools.cached_property
    def pairs(self) -> list[tuple[Conversation, str]]:
        """What comes before each answer, and the answer."""
        return [conversation_of(record, place) for record, place in self.records()]

    @abstractmethod
    def records(self) -> Iterable[tuple[Any, str]]:
        """Yields each record, and where it stands."""

    def read(self) -> None:
        require(len(self.pairs) > 0, "data", self, "a source with at least one example")

    def examples(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> MakeExamples:
        encoded = [encode(tokenizer, chat, answer) for chat, answer in self.pairs]
        fitting = _some_fit(encoded, max_length)
        if len(fitting) < len(encoded):
            logger.warning(f"{len(encoded) - len(fitting)} of {len(encoded)} examples exceed max_length={max_length}.")

        @functools.lru_cache(2)
        def order(seed: int, epoch: int) -> list[int]:
            return random.Random(f"epoch-{seed}-{epoch}").sample(range(len(fitting)), len(fitting))

        def make(seed: int, step: int, count: int) -> list[Example]:
            numbers = (divmod(i, len(fitting)) for i in range(step * count, (step + 1) * count))
            return [fitting[order(seed, epoch)[i]] for epoch, i in numbers]

        return make


@register_source("jsonl")
@dataclass(frozen=True)
class JsonlSource(Conversations):
    """A file with a JSON object per line: `{"prompt": ..., "answer": ...}`, or `{"messages": [...]}`.

    Args:
        file: path of the file, relative to the current folder.

    Raises:
        ValueError: for a path that is no text; when it is read, for a line of another form.
    """

    file: str

    def __post_init__(self) -> None:
        require(isinstance(self.file, str) and bool(self.file), "file", self.file, "the path of a .jsonl file")

    def records(self) -> Iterable[tuple[Any, str]]:
        for number, line in numbered_lines(self.file):
            place = f"{self.file}, line {number}"
            if not line.strip():
                continue
            try:
                yield json.loads(line), place
            except ValueError as error:
                raise ValueError(f"{place} is no JSON: {error}") from error


@register_source("datasets")
@dataclass(frozen=True)
class DatasetSource(Conversations):
    """A folder that the `datasets` library saved (`save_to_disk`), with the columns of [`JsonlSource`].

    Args:
        folder: path of the folder, relative to the current one.
        split: of a folder with several. Default `"train"`.

    Raises:
        ValueError: for a path or a split that is no text.
        ImportError: when it is read, if `datasets` is not installed.
    """

    folder: str
    split: str = "train"

    def __post_init__(self) -> None:
        require(isinstance(self.folder, str) and bool(self.folder), "folder", self.folder, "the path of a folder")
        require(isinstance(self.split, str) and bool(self.split), "split", self.split, "the name of a split")

    def records(self) -> Iterable[tuple[Any, str]]:
        try:
            from datasets import DatasetDict, load_from_disk
        except ImportError as error:
            raise ImportError("The data source 'datasets' needs the library: pip install datasets") from error
        data = load_from_disk(self.folder)
        if isinstance(data, DatasetDict):
            require(self.split in data, "split", self.split, f"one of {sorted(data)}")
            data = data[self.split]
        for number, record in enumerate(data):
            yield record, f"{self.folder}, row {number}"


def conversation_of(record: Any, place: str) -> tuple[Conversation, str]:
    """Splits a record into what comes before the answer, and the answer.

    Args:
        record: `{"prompt": text, "answer": text}` or `{"messages": [{"role": ..., "content": ...}, ...]}`, the last of
            the messages being the assistant's.
        place: where it stands, for errors.

    Raises:
        ValueError: for anything else.
    """
    record = record if isinstance(record, Mapping) else {}
    messages, prompt, answer = (record.get(key) for key in ("messages", "prompt", "answer"))
    if messages is None and is_text(prompt) and is_text(answer):
        return user(prompt), answer
    turns = messages if isinstance(messages, list) else []
    whole = all(isinstance(m, Mapping) and is_text(m.get("role")) and is_text(m.get("content")) for m in turns)
    if whole and len(turns) > 1 and turns[-1]["role"] == "assistant":
        return [{"role": m["role"], "content": m["content"]} for m in turns[:-1]], turns[-1]["content"]
    raise ValueError(
        f'{place} must be {{"prompt": text, "answer": text}}, or {{"messages": [...]}} with the role and the content '
        "of two or more messages, the last of the role assistant; no text is empty or has half a surrogate pair."
    )


def _length(pair: Example) -> int:
    return len(pair[0]) + len(pair[1])


def _some_fit(pairs: list[Example], max_length: int) -> list[Example]:
    fitting = [pair for pair in pairs if _length(pair) <= max_length]
    shortest = min(map(_length, pairs))
    require(len(fitting) > 0, "max_length", max_length, f"at least {shortest}, the length of the shortest example")
    return fitting
