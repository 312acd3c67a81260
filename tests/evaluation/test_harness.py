"""Scores of configurations, and their statistics."""

import json
import math

import pytest
from models import byte_tokenizer, tiny_llada

from dllm_generate.evaluation import harness
from dllm_generate.evaluation.harness import Score, answer_room, evaluate, label
from dllm_generate.evaluation.statistics import mean, paired_difference, ratio
from dllm_generate.evaluation.tasks import Problem
from dllm_generate.text import Reply


@pytest.fixture(scope="module")
def pair():
    tokenizer = byte_tokenizer()
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    return tiny_llada(vocabulary=len(tokenizer), **ids), tokenizer


def test_estimates():
    assert mean([1.0, 1.0, 0.0, 0.0]).value == 0.5
    assert mean([1.0, 1.0, 0.0, 0.0]).error == pytest.approx(math.sqrt(1 / 3 / 4))
    assert mean([3.0]).error == 0.0
    assert ratio([2, 4], [1, 2]) == type(mean([1]))(2.0, 0.0)
    assert ratio([10, 10], [5, 10]).value == pytest.approx(20 / 15)
    assert ratio([10, 10], [5, 10]).error > 0


def test_paired_differences_have_a_width_even_where_nothing_differs():
    right, wrong = [True] * 50, [False] * 50
    same = paired_difference(right, right)
    assert same.value == 0 and -0.06 < same.low < 0 < same.high < 0.06
    assert paired_difference(wrong, right).value == 1.0
    assert paired_difference(right, wrong).high < -0.8
    mixed = paired_difference(right[:10] + wrong[:10], wrong[:5] + right[:5] + wrong[:10])
    assert mixed.value == -0.25 and mixed.low < -0.25 < mixed.high


def test_the_interval_of_a_paired_difference_covers():
    import random

    rng, covered = random.Random(0), 0
    for _ in range(300):
        first = [rng.random() < 0.8 for _ in range(100)]
        second = [a if rng.random() < 0.9 else rng.random() < 0.5 for a in first]
        found = paired_difference(first, second)
        covered += found.low <= -0.03 <= found.high
    assert covered >= 0.92 * 300


def test_accuracy_counts_and_speed_come_from_the_replies(monkeypatch, pair):
    problems = [Problem("add", f"p{i}", f"a{i}") for i in range(5)] + [Problem("map", "q", "b")]
    calls = []

    def scripted(model, tokenizer, conversations, **options):
        calls.append((len(conversations), options))
        texts = [c[0]["content"].replace("p", "a") for c in conversations]
        return [Reply(t, 10, options["forwards"], 0.5, "eos") for t in texts]

    monkeypatch.setattr(harness, "reply", scripted)
    results = evaluate(*pair, [{"forwards": 10}, {"forwards": 2}], problems=problems, batch_size=4)
    assert [size for size, _ in calls] == [4, 2, 4, 2]
    assert all(options["max_new_tokens"] == 32 for _, options in calls)
    first, second = results
    assert first.overall.accuracy.value == pytest.approx(5 / 6)
    assert {name: score.accuracy.value for name, score in first.tasks.items()} == {"add": 1.0, "map": 0.0}
    assert first.overall.tokens_per_forward.value == 1.0 and second.overall.tokens_per_forward.value == 5.0
    assert second.overall.forwards.value == 2.0
    assert first.seconds == 1.0 and first.tokens_per_second == 60.0
    assert first.difference is None and second.difference.value == 0.0


def test_greedy_results_do_not_depend_on_the_batch_size(pair):
    options = [{"decoder": "threshold", "max_new_tokens": 8, "block_length": 4}]
    alone, together = (evaluate(*pair, options, tasks=["add"], n=3, batch_size=size)[0] for size in (1, 3))
    assert [j.reply.text for j in alone.judged] == [j.reply.text for j in together.judged]
    assert Score.of(alone.judged).forwards == Score.of(together.judged).forwards
    assert json.loads(json.dumps(alone.to_dict()))["overall"]["n"] == 3


def test_nothing_to_evaluate_is_an_error(pair):
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate(*pair, [], n=1)
    with pytest.raises(ValueError, match="sums"):
        evaluate(*pair, tasks=["sums"], n=1)
    with pytest.raises(ValueError, match="`level` is 4"):
        evaluate(*pair, level=4, n=1)


def test_room_and_labels():
    tokenizer = byte_tokenizer()
    assert answer_room(tokenizer, [Problem("add", "", "x" * 31)]) == 32
    assert answer_room(tokenizer, [Problem("add", "", "x" * 32)]) == 64
    assert label({"decoder": "threshold", "threshold": 0.9, "cache_policy": "dual"}) == "threshold 0.9 dual"
    assert label({"decoder": "factor", "decoder_config": {"factor": 2}}) == "factor factor=2"
    assert label({}) == "default"
