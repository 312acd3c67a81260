"""Accuracy under parallelism, by hand."""

import itertools
import math

import pytest

from dllm_generate.evaluation.aup import aup
from dllm_generate.evaluation.curves import Curves, front, method


def test_a_rectangle_up_to_the_slowest_point_then_weighted_trapezoids():
    # 1 x 80, then 2 wide between 80 and 78 exp(-3 x 0.025) = 72.364; the last point is 10 points below the slowest.
    assert aup([(1, 0.8), (3, 0.78), (5, 0.7)]) == pytest.approx(80 + (80 + 72.36395) / 2 * 2, abs=1e-4)
    # The first rectangle is not weighted, the trapezoids are: w(80) = exp(-3 x 0.2), w(78) = exp(-3 x 0.22).
    low, high = 80 * math.exp(-0.6), 78 * math.exp(-0.66)
    assert aup([(1, 0.8), (3, 0.78)], best=1.0) == pytest.approx(80 + low + high)


def test_equal_accuracy_is_the_accuracy_times_the_fastest():
    assert aup([(0.5, 0.9), (2.0, 0.9), (7.0, 0.9)]) == pytest.approx(630.0)
    assert aup([(4.0, 0.25)]) == pytest.approx(100.0)
    assert aup([(4.0, 0.0)]) == 0.0


def test_five_points_below_the_slowest_is_still_in_and_lines_span_what_is_out():
    assert aup([(1, 0.8), (2, 0.75)]) > 80
    assert aup([(1, 0.8), (2, 0.749)]) == pytest.approx(80)
    assert aup([(1, 0.8), (2, 0.6), (3, 0.8)]) == pytest.approx(240)


def test_the_order_of_points_does_not_matter():
    points = [(1, 0.8), (2, 0.79), (2, 0.82), (3, 0.8)]
    assert len({aup(list(order)) for order in itertools.permutations(points)}) == 1
    assert aup(points) == aup([(1, 0.8), (2, 0.82), (3, 0.8)])


@pytest.mark.parametrize(
    ("points", "best", "message"),
    [
        ([], None, "`points` is empty"),
        ([(0, 0.5)], None, "TPF of 0"),
        ([(math.nan, 0.5)], None, "TPF of nan"),
        ([(1, 74.8)], None, "74.8.*divide percents"),
        ([(1, math.nan)], None, r"nan.*\[0, 1\]"),
        ([(1, True)], None, "True"),
        ([(1, 0.5)], 70, "`best` has an accuracy of 70"),
        ([(1, 0.5)], 0.4, "`best` is 0.4"),
    ],
)
def test_what_is_no_curve_is_an_error(points, best, message):
    with pytest.raises(ValueError, match=message):
        aup(points, best)


def test_the_pareto_front():
    points = [(1, 1.0), (2, 1.0), (3, 0.9), (2.5, 0.8), (4, 0.9), (5, 0.1), (5, 0.2)]
    assert front(points) == [(2, 1.0), (4, 0.9), (5, 0.2)]
    assert front([]) == []


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"decoder": "threshold", "threshold": 0.9, "cache_policy": "dual"}, "threshold dual"),
        ({"decoder": "fixed", "steps": 8, "decoder_config": {"ranking": "margin"}}, "fixed ranking=margin"),
        ({"decoder": "factor", "decoder_config": {"factor": 2}, "smoothing": True}, "factor smoothing=True"),
        ({}, "default"),
    ],
)
def test_a_method_is_a_configuration_without_its_thresholds(config, name):
    assert method(config) == name


def test_curves_begin_at_the_slowest_row_and_share_the_best_accuracy():
    configs = [
        {"decoder": "fixed"},
        *({"decoder": "threshold", "threshold": t} for t in (0.9, 0.6)),
        {"decoder": "factor"},
    ]
    curves = Curves.of(configs, [(1, 0.9), (3, 0.88), (9, 0.5), (4, 1.0)])
    weight = lambda accuracy: 100 * accuracy * math.exp(-3 * (1 - accuracy))
    assert curves.methods["fixed"] == pytest.approx(90)
    assert curves.methods["threshold"] == pytest.approx(90 + weight(0.9) + weight(0.88))
    assert curves.methods["factor"] == pytest.approx(90 + 1.5 * (weight(0.9) + 100))
    assert curves.overall == curves.methods["factor"]
    assert Curves.of([{}], [(0.0, 0.0)]) == Curves(0.0, {})
