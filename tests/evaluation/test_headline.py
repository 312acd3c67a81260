"""The comparison of all systems, on a few problems."""

import pytest

from dllm_generate.cli.headline import headline_tables
from dllm_generate.evaluation.headline import CONTENDERS, Contender, measure_headline
from dllm_generate.evaluation.tasks import heldout_problems

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
    assert [str(c.header) for c in own.columns][1:3] == ["accuracy", "difference"]
    assert "accuracy" not in [str(c.header) for c in forced.columns]


def test_the_comparison_names_every_system_once():
    names = [contender.name for contender in CONTENDERS]
    assert len(set(names)) == len(names) and not CONTENDERS[0].causal
    assert {c.causal for c in CONTENDERS} == {True, False}


def test_a_missing_model_says_so():
    gone = Contender("gone", "dllm-none", {})
    with pytest.raises(FileNotFoundError, match="'dllm-none' is in none of"):
        measure_headline(heldout_problems(["map"], n=1), [PLAIN, gone], forced=[], runs=1)
