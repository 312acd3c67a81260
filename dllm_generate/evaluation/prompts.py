"""Prompts to tune on, with or without a way to judge an answer."""

import functools
import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from .tasks import STANDARD_LEVEL, check, heldout_problems


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Args:
        text: what the user says.
        is_right: judges what the model wrote; None where no reference answer is known.
        answer: the whole text that is expected, where it is known; the room for answers is measured on it.
    """

    text: str
    is_right: Callable[[str], bool] | None = None
    answer: str | None = None


def task_prompts(
    tasks: Sequence[str] | None = None, n: int = 100, seed: int = 0, level: int = STANDARD_LEVEL
) -> list[Prompt]:
    """The held-out problems of the bundled tasks, in random order.

    Args:
        tasks, n, seed, level: as for [`heldout_problems`].

    Raises:
        ValueError: as [`heldout_problems`].
    """
    problems = heldout_problems(tasks, n, seed, level)
    random.Random(seed).shuffle(problems)
    return [Prompt(p.prompt, functools.partial(check, p), p.answer) for p in problems]


def read_prompts(path: str | Path) -> list[Prompt]:
    """Reads prompts from a file.

    Args:
        path: a name that ends in `.jsonl`: a JSON object per line, with `"prompt"` and, in all lines or in none,
            `"answer"`. Any other name: a prompt per line of text. Blank lines are skipped.

    Returns:
        The prompts, in order; those with an answer are judged by [`gives`].

    Raises:
        ValueError: a line that is not of this form, named by its number; a file without prompts.
        OSError: a file that cannot be read.
    """
    json_lines = str(path).lower().endswith(".jsonl")
    prompts = [
        _from_json(line, f"{path}, line {number}") if json_lines else Prompt(line.strip())
        for number, line in numbered_lines(path)
        if line.strip()
    ]
    if not prompts:
        raise ValueError(f"{path} holds no prompt.")
    judged = sum(prompt.is_right is not None for prompt in prompts)
    if judged not in (0, len(prompts)):
        raise ValueError(
            f"{path} has an `answer` for {judged} of {len(prompts)} prompts, but must for all or for none."
        )
    return prompts


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Lines of a text file with their numbers, from 1. Only line breaks end them, not Unicode's other separators.

    Raises:
        ValueError: a file that is not UTF-8, by its name.
        OSError: a file that cannot be read.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            yield from enumerate(file, 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from error


def is_text(value: Any) -> TypeGuard[str]:
    """Whether a value is a text that is not blank, and that a tokenizer takes: without half a surrogate pair."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _from_json(line: str, place: str) -> Prompt:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is no JSON: {error}") from error
    text = entry.get("prompt") if isinstance(entry, dict) else None
    if not is_text(text):
        raise ValueError(
            f'{place} must be a JSON object whose "prompt" is a text, not empty and without half a surrogate pair.'
        )
    answer = entry.get("answer")
    if answer is None:
        return Prompt(text)
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not _normal(str(answer)):
        raise ValueError(f'{place} has the "answer" {answer!r}, but it must be a text that is not empty, or a number.')
    return Prompt(text, functools.partial(gives, str(answer)))


def gives(answer: str, text: str) -> bool:
    """Whether a text is the reference answer, or contains it as whole words.

    Case, kinds of blanks and of letter forms (Unicode NFKC) and a final full stop do not matter. A number is not
    contained in a longer one: neither 8 in 18, nor 12 in 12.5, nor 5 in -5.

    Args:
        answer: the reference.
        text: what the model wrote.

    Example:
        >>> gives("42", "So the result is 42.")
        True
    """
    # Neither part of a word or number on the left, nor its decimals or thousands, nor a number behind a minus sign.
    before, after = r"(?<!\w)(?<!\d[.,])(?<!\W-)(?<!^-)", r"(?!\w)(?![.,]\d)"
    return re.search(before + re.escape(_normal(answer)) + after, _normal(text)) is not None


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".").rstrip()
