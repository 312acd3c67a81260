"""Estimates with their uncertainty."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Interval:
    """A value and its 95% interval."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float]) -> Estimate:
    """The mean and its standard error, which is 0 for a single value."""
    n = len(values)
    centre = sum(values) / n
    spread = sum((value - centre) ** 2 for value in values)
    return Estimate(centre, math.sqrt(spread / max(n - 1, 1) / n))


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """The ratio of two sums over the same problems, with its standard error to first order."""
    total = sum(denominators)
    value = sum(numerators) / total
    residuals = [a - value * b for a, b in zip(numerators, denominators, strict=True)]
    return Estimate(value, mean(residuals).error * len(residuals) / total)


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> Interval:
    """How much more often `second` is right than `first`, on the same problems.

    The interval is that of Agresti and Min (2005), which adds two pairs to the data: that of Wald has no width at all
    where the two never differ.
    """
    n = len(first)
    won = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    centre = (won - lost) / (n + 2)
    error = math.sqrt((won + lost + 1) - (won - lost) ** 2 / (n + 2)) / (n + 2)
    return Interval((won - lost) / n, max(centre - 1.96 * error, -1.0), min(centre + 1.96 * error, 1.0))
