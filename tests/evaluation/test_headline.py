"""The comparison of all systems, on a few problems."""

import pytest

from dllm_generate.cli.headline import headline_tables
from dllm_generate.evaluation import headline
from dllm_generate.evaluation.contenders import CONTENDERS, Contender
from dllm_generate.evaluation.headline import measure_headline
from dllm_generate.evaluation.tasks import heldout_problems
from dllm_generate.text import Reply

PLAIN = Contender("plain", "dllm-tiny", {"decoder": "fixed", "cache_policy": "dual"})
FAST = Contender("fast", "dllm-tiny", {"decoder": "threshold", "cache_policy": "dual"})
CAUSAL = Contender("causal", "dllm-tiny-ar", {}, causal=True)


@pytest.fixture(scope="module")
def rows():
    problems = heldout_problems(["record", "map"], n=1)
    return measure_headline(problems, [PLAIN, FAST, CAUSAL], forced=[8], runs=1, speed_problems=2, dtype="float32")


def test_every_contender_is_measured_on_the_same_problems(rows):
    assert [row.contender.name for row in rows] == ["plain", "fast", "causal"]
    assert rows[0].difference is None and rows[1].difference is not None
    assert all(row.accuracy.value == 1.0 for row in rows)
    assert [set(row.speeds) for row in rows] == [{0, 8}] * 3


def test_forwards_and_tokens_are_counted(rows):
    plain, fast, causal = (row.speeds for row in rows)
    # One token per forward, also for the EOS.
    assert plain[8].tokens_per_forward == causal[8].tokens_per_forward == 1.0
    assert plain[8].forwards == causal[8].forwards == 8
    assert fast[0].tokens_per_forward > plain[0].tokens_per_forward
    assert causal[0].tokens_per_forward < 1


def test_ratios_are_to_the_first_row_and_to_the_fastest_causal_one(rows):
    for length in (0, 8):
        first, causal = rows[0].speeds[length], rows[2].speeds[length]
        assert first.to_plain == 1.0 and causal.to_causal == 1.0
        for row in rows:
            speed = row.speeds[length]
            assert speed.to_plain == pytest.approx(speed.tokens_per_second / first.tokens_per_second)
            assert speed.to_causal == pytest.approx(speed.tokens_per_second / causal.tokens_per_second)


def test_tables_show_accuracy_once(rows):
    own, forced = headline_tables(rows)
    assert own.row_count == forced.row_count == 3
    assert [str(c.header) for c in own.columns][1:4] == ["accuracy", "difference", "tables"]
    assert "accuracy" not in [str(c.header) for c in forced.columns]


def test_the_comparison_names_every_system_once():
    names = [contender.name for contender in CONTENDERS]
    assert len(set(names)) == len(names) and not CONTENDERS[0].causal
    assert {c.causal for c in CONTENDERS} == {True, False}


def test_a_missing_model_says_so():
    gone = Contender("gone", "dllm-none", {})
    with pytest.raises(FileNotFoundError, match="'dllm-none' is in none of"):
        measure_headline(heldout_problems(["map"], n=1), [PLAIN, gone], forced=[], runs=1)


def test_long_problems_serve_where_they_fit(monkeypatch):
    """Slow contenders decode fewer; forced lengths take the problems whose answers are nearest."""
    asked = []

    def answers_of(contender, dtype):
        def answer(problems, options):
            asked.append((contender.name, options["max_new_tokens"], [p.prompt for p in problems]))
            texts = [p.answer if contender.name == "right" else "" for p in problems]
            return [Reply(text, 1, 1, 1.0, "eos") for text in texts]

        return answer

    monkeypatch.setattr(headline, "answers_of", answers_of)
    short, long = heldout_problems(["map"], n=4), heldout_problems(["table"], n=8)
    contenders = [Contender("wrong", "dllm-tiny", {}, slow=True), Contender("right", "dllm-tiny", {})]
    wrong, right = measure_headline(
        short, contenders, long_problems=long, forced=[170], slow_problems=2, runs=1, batch_size=64
    )
    assert (wrong.accuracy.value, right.accuracy.value) == (0.0, 1.0)
    assert (wrong.long_accuracy.value, right.long_accuracy.value) == (0.0, 1.0)
    tables = {name: prompts for name, _, prompts in asked if prompts[0] == long[0].prompt and len(prompts) > 1}
    assert {name: len(prompts) for name, prompts in tables.items()} == {"wrong": 2, "right": 8}
    # A line of a table has ten tokens.
    prompts = {prompts[0] for _, length, prompts in asked if length == 170}
    assert prompts
    lines = {p.prompt: p.answer.count("\n") + 1 for p in long}
    assert {abs(lines[prompt] - 17) for prompt in prompts} <= set(sorted(abs(n - 17) for n in lines.values())[:2])
