"""The task generators: seeded, held-out split, checkers, tokenizer fit."""

import itertools
import re
import warnings

import pytest

from dllm_generate.evaluation.tasks import TASKS, Problem, check, heldout_problems, is_heldout, training_problems
from dllm_generate.evaluation.vocabulary import PIECES
from dllm_generate.training.tokenizer import build_tokenizer

ALL = list(TASKS)


def take(count, *args, **kwargs):
    return list(itertools.islice(training_problems(*args, **kwargs), count))


def test_training_stream_depends_on_its_seed_alone():
    assert take(40, 3) == take(40, 3)
    assert take(40, 3) != take(40, 4)


def test_heldout_is_disjoint_from_training_and_unique():
    heldout = heldout_problems(ALL, n=50, seed=1)
    prompts = {p.prompt for p in heldout}
    assert len(prompts) == len(heldout) == 50 * len(ALL)
    assert all(is_heldout(p.prompt) for p in heldout)
    assert prompts.isdisjoint(p.prompt for p in take(3000, 0, ALL))
    assert not any(is_heldout(p.prompt) for p in take(3000, 0, ALL))


def test_heldout_differs_by_seed_and_level():
    assert heldout_problems(["add"], 20, 0) == heldout_problems(["add"], 20, 0)
    assert heldout_problems(["add"], 20, 0) != heldout_problems(["add"], 20, 1)
    short, long = (heldout_problems(["map"], 20, 0, level) for level in (0, 2))
    assert max(len(p.answer) for p in short) < min(len(p.answer) for p in long)


def test_too_few_heldout_prompts_is_an_error(monkeypatch):
    constant = TASKS["add"].__class__(lambda rng, size: Problem("add", "same", ""), ((1, 1),) * 3, str.__eq__)
    monkeypatch.setitem(TASKS, "constant", constant)
    with pytest.raises(ValueError, match="constant"):
        heldout_problems(["constant"], 2)


@pytest.mark.parametrize("task", ALL)
def test_reference_answers_pass_and_damaged_ones_fail(task):
    for problem in heldout_problems([task], 30):
        assert check(problem, problem.answer)
        assert check(problem, problem.answer + "\n")
        assert not check(problem, problem.answer[:-1])
        assert not check(problem, "")


def test_code_and_records_are_compared_by_meaning():
    function = Problem("code", "", "def f(x):\n    x = x + 3\n    return x")
    assert check(function, "def f(x):\n  x = (x + 3)\n  return x  # done")
    assert not check(function, "def f(x):\n    x = 3 + x\n    return x")
    assert not check(function, "def f(x:")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not check(function, "def f(x):\n    return 8if x else 9")
    assert not check(function, "(" * 5000)
    row = Problem("record", "", '{"name": "Anna", "age": 34}')
    assert check(row, '{ "name":"Anna",\n "age": 34 }')
    assert not check(row, '{"age": 34, "name": "Anna"}')
    assert not check(row, '{"name": "Anna", "age": "34"}')


def test_column_addition_is_right():
    for problem in heldout_problems(["add"], 50):
        first, second = (int(word) for word in problem.prompt.split() if word.isdigit())
        assert problem.answer.splitlines()[-1] == f"Sum {first + second}"


def test_weights_of_tasks_are_followed():
    counts = [p.task for p in take(2000, 0, {"add": 3.0, "map": 1.0})]
    assert set(counts) == {"add", "map"}
    assert 0.7 < counts.count("add") / 2000 < 0.8


def test_every_answer_fits_and_survives_the_tokenizer():
    tokenizer = build_tokenizer(PIECES)
    for problem in heldout_problems(n=50):
        ids = tokenizer(problem.answer).input_ids
        assert tokenizer.decode(ids) == problem.answer
        assert 20 <= len(ids) <= 150


def test_long_tables_are_drawn_only_when_they_are_named():
    assert {p.task for p in heldout_problems(n=2)} == set(ALL) - {"table"} == {p.task for p in take(200, 0)}
    lines = [p.answer.splitlines() for p in heldout_problems(["table"], 20, level=3)]
    assert all(36 <= len(its) <= 51 for its in lines)
    assert all(int(a) + int(b) == int(c) for its in lines for a, b, c in (re.split(r"[+=]", line) for line in its))
