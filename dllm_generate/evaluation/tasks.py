"""Seeded, verifiable text tasks for a tiny language model: generators, held-out split, checkers.

A problem is held out iff a stable hash of its prompt is 0 mod 16. Training skips those prompts and evaluation keeps
only those, so that the two never meet, whatever their seeds.
"""

import ast
import hashlib
import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..registry import is_int, require
from .vocabulary import FUNCTION_NAMES, NUMBER_FIELDS, WORD_FIELDS

STANDARD_LEVEL, LONG_LEVEL = 2, 3
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Problem:
    """One prompt with its reference answer.

    Args:
        task: key of `TASKS`.
        prompt: the user's text.
        answer: the reference answer, without end-of-sequence token.
    """

    task: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """How to make and how to judge the problems of one type.

    Args:
        generate: `(rng, size) -> Problem`, where `size` counts the parts of the answer.
        sizes: for each level, the smallest and the largest size.
        same: `(answer, text) -> bool`, whether `text` says the same as the reference `answer`.
        standard: used wherever no tasks are named.
    """

    generate: Callable[[random.Random, int], Problem]
    sizes: tuple[tuple[int, int], ...]
    same: Callable[[str, str], bool]
    standard: bool = True


def _code_step(rng: random.Random, target: str, names: Sequence[str]) -> tuple[str, list[str]]:
    number, result = rng.randint(1, 9), rng.choice(names)
    other = rng.choice([n for n in names if n != target] + [str(rng.randint(1, 9)) for _ in range(2)])
    kind = rng.choice(("add", "subtract", "multiply", "above", "below"))
    then, give = f" return {result}", f"    return {result}"
    return {
        "add": (f"add {other} to {target}", [f"{target} = {target} + {other}"]),
        "subtract": (f"subtract {other} from {target}", [f"{target} = {target} - {other}"]),
        "multiply": (f"multiply {target} by {other}", [f"{target} = {target} * {other}"]),
        "above": (f"if {target} is above {number}{then}", [f"if {target} > {number}:", give]),
        "below": (f"if {target} is below {number}{then}", [f"if {target} < {number}:", give]),
    }[kind]


def code(rng: random.Random, size: int) -> Problem:
    """A Python function of `size` steps, written from a specification."""
    names = rng.sample(LETTERS, rng.randint(2, 3))
    signature = f"{rng.choice(FUNCTION_NAMES)}({', '.join(names)})"
    steps = [_code_step(rng, rng.choice(names), names) for _ in range(size)]
    result = rng.choice(names)
    wanted = ", ".join([text for text, _ in steps] + [f"return {result}"])
    body = [line for _, lines in steps for line in lines] + [f"return {result}"]
    answer = "".join([f"def {signature}:"] + [f"\n    {line}" for line in body])
    return Problem("code", f"Write a Python function {signature}: {wanted}.", answer)


def add(rng: random.Random, size: int) -> Problem:
    """The sum of two numbers of `size` digits, column by column from the right, each column with its carry."""
    low = 10 ** (size - 1)
    first, second = rng.randrange(low, 10 * low), rng.randrange(low, 10 * low)
    carry, lines = 0, []
    for a, b in zip(reversed(str(first)), reversed(str(second)), strict=True):
        total = int(a) + int(b) + carry
        lines.append(f"{a}+{b}+{carry}={total:02d}")
        carry = total // 10
    answer = "\n".join([*lines, f"Sum {first + second}"])
    return Problem("add", f"Add {first} and {second} column by column.", answer)


def record(rng: random.Random, size: int) -> Problem:
    """A JSON object whose keys and their order are asked for, filled from facts in another order."""
    keys = rng.sample([*WORD_FIELDS, *NUMBER_FIELDS], size)
    values: dict[str, str | int] = {}
    for key in keys:
        values[key] = rng.choice(WORD_FIELDS[key]) if key in WORD_FIELDS else rng.randint(*NUMBER_FIELDS[key])
    facts = "; ".join(f"{key} is {values[key]}" for key in rng.sample(keys, size))
    return Problem("record", f"Make JSON with {', '.join(keys)} from: {facts}.", json.dumps(values))


def map_list(rng: random.Random, size: int) -> Problem:
    """The same one-digit number added to every item of a list whose items carry unique letters."""
    number, keys = rng.randint(0, 9), rng.sample(LETTERS, size)
    items = [(key, rng.randint(0, 9)) for key in keys]
    prompt = f"Add {number} to each: {', '.join(f'{key}={value}' for key, value in items)}."
    answer = "\n".join(f"{key}: {value}+{number}={value + number:02d}" for key, value in items)
    return Problem("map", prompt, answer)


def total(rng: random.Random, size: int) -> Problem:
    """A running total: one-digit numbers added one after the other to a two-digit start."""
    value, keys = rng.randint(10, 99 - 9 * size), rng.sample(LETTERS, size)
    numbers = [rng.randint(1, 9) for _ in keys]
    prompt = f"Start at {value}, then add: {', '.join(f'{k}={n}' for k, n in zip(keys, numbers, strict=True))}."
    lines = []
    for key, number in zip(keys, numbers, strict=True):
        lines.append(f"{key}: {value}+{number}={value + number}")
        value += number
    return Problem("total", prompt, "\n".join(lines))


def table(rng: random.Random, size: int) -> Problem:
    """The same one-digit number added to `size` consecutive numbers up to one that ends in 89, a line each."""
    number, stop = rng.randint(0, 9), 100 * rng.randint(1, 9) + 90
    values = range(stop - size, stop)
    answer = "\n".join(f"{value}+{number}={value + number}" for value in values)
    return Problem("table", f"Add {number} to each: {values[0]} to {values[-1]}.", answer)


def _same_text(answer: str, text: str) -> bool:
    return answer == text


def _same_code(answer: str, text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.dump(ast.parse(answer)) == ast.dump(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _same_json(answer: str, text: str) -> bool:
    try:
        return json.loads(answer, object_pairs_hook=list) == json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return False


TASKS: dict[str, Task] = {
    "code": Task(code, ((1, 2), (2, 3), (3, 6), (6, 9)), _same_code),
    "add": Task(add, ((2, 3), (2, 4), (3, 5), (6, 7)), _same_text),
    "record": Task(record, ((2, 3), (4, 6), (7, 9), (9, 11)), _same_json),
    "map": Task(map_list, ((2, 3), (3, 5), (4, 7), (8, 10)), _same_text),
    "total": Task(total, ((2, 3), (3, 4), (4, 6), (7, 9)), _same_text),
    "table": Task(table, ((2, 6), (7, 16), (17, 35), (36, 51)), _same_text, standard=False),
}
STANDARD_TASKS = tuple(name for name, task in TASKS.items() if task.standard)


def is_heldout(prompt: str) -> bool:
    """Whether a prompt belongs to the evaluation split: a stable hash of it is 0 mod 16."""
    return hashlib.blake2b(prompt.encode(), digest_size=8).digest()[-1] % 16 == 0


def check(problem: Problem, text: str) -> bool:
    """Judges a generated text.

    Code is compared as syntax tree and JSON as ordered key-value pairs; everything else, trailing blanks aside,
    letter by letter. Nothing that a model wrote is ever run.

    Args:
        problem: what was asked.
        text: what the model wrote, decoded without special tokens.

    Returns:
        True iff the text answers the problem.

    Example:
        >>> check(Problem("add", "", "Sum 12"), "Sum 12\\n")
        True
    """
    return TASKS[problem.task].same(problem.answer, text.strip())


def _draw(rng: random.Random, task: str, level: int) -> Problem:
    return TASKS[task].generate(rng, rng.randint(*TASKS[task].sizes[level]))


def _draw_up_to(rng: random.Random, task: str, level: int) -> Problem:
    sizes = TASKS[task].sizes
    return TASKS[task].generate(rng, max(rng.randint(sizes[0][0], sizes[level][1]) for _ in range(2)))


def training_problems(
    seed: int, tasks: Sequence[str] | dict[str, float] | None = None, level: int = LONG_LEVEL
) -> Iterator[Problem]:
    """Endless stream of training problems; held-out prompts never appear in it.

    Args:
        seed: the same seed gives the same stream.
        tasks: names of tasks, or a dict from name to relative frequency. Default: `STANDARD_TASKS`, equally often.
        level: the longest answers are those of level 0 (short), 1, 2 or 3 (long); shorter ones occur, too.

    Yields:
        `Problem`s.
    """
    weights = tasks if isinstance(tasks, dict) else dict.fromkeys(tasks or STANDARD_TASKS, 1.0)
    rng = random.Random(f"train-{seed}")
    while True:
        task = rng.choices(list(weights), list(weights.values()))[0]
        problem = _draw_up_to(rng, task, level)
        if not is_heldout(problem.prompt):
            yield problem


def heldout_problems(
    tasks: Sequence[str] | None = None, n: int = 500, seed: int = 0, level: int = STANDARD_LEVEL
) -> list[Problem]:
    """Held-out problems, `n` for each task, no prompt twice.

    Args:
        tasks: names of tasks. Default: `STANDARD_TASKS`.
        n: number of problems per task.
        seed: the same seed gives the same problems.
        level: 0 (short) to 3 (long). Default 2: answers of about 30 to 60 tokens of the bundled tokenizer; those of
            `table` have 170 to 350, and 360 to 510 at level 3.

    Returns:
        `n * len(tasks)` problems, task by task.

    Raises:
        ValueError: an unknown task or level, or a task with too few different held-out prompts at this level.
    """
    unknown = sorted(set(tasks or ()) - set(TASKS))
    if unknown:
        raise ValueError(f"`tasks` has {unknown}, but only {list(TASKS)} exist.")
    require(is_int(level) and 0 <= level <= LONG_LEVEL, "level", level, f"an int from 0 to {LONG_LEVEL}")
    problems: list[Problem] = []
    for task in tasks or STANDARD_TASKS:
        rng, found = random.Random(f"heldout-{seed}-{task}"), dict[str, Problem]()
        for _ in range(1000 * n):
            problem = _draw(rng, task, level)
            if is_heldout(problem.prompt):
                found.setdefault(problem.prompt, problem)
            if len(found) == n:
                break
        else:
            raise ValueError(f"task {task!r} has only {len(found)} held-out prompts at level {level}, not n = {n}")
        problems += found.values()
    return problems
