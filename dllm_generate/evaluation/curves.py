"""Accuracy over tokens per forward: what belongs to one curve, and the figure of each."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..registry import is_number
from .aup import Point, aup
from .harness import Config, label

# What is turned to move along the curve of a method.
KNOBS = ("threshold", "steps", "steps_per_block")


@dataclasses.dataclass(frozen=True)
class Curves:
    """AUP of the configurations that were measured together, in percent times tokens per forward.

    Attributes:
        overall: of the Pareto front of all.
        methods: of every method, under its name.
    """

    overall: float
    methods: dict[str, float]

    @classmethod
    def of(cls, configs: Sequence[Config], points: Sequence[Point]) -> "Curves":
        """Groups what was measured into curves.

        A method is what configurations share that differ only in thresholds, steps and numbers of `decoder_config`:
        decoder, cache policy, smoothing, block length and whatever else was set. As in the leaderboard, every curve
        begins at the slowest configuration of all and is weighted by the best accuracy of all.

        Args:
            configs: options of generate.
            points: `(tokens per forward, accuracy in [0, 1])` of each. Those without any token are left out.
        """
        rows = [(method(config), point) for config, point in zip(configs, points, strict=True) if point[0] > 0]
        if not rows:
            return cls(0.0, {})
        measured = [point for _, point in rows]
        slowest, best = slowest_of(measured), max(accuracy for _, accuracy in measured)
        own = lambda name: [point for other, point in rows if other == name]
        methods = {name: aup([slowest, *own(name)], best) for name in dict.fromkeys(name for name, _ in rows)}
        return cls(aup([slowest, *front(measured)], best), methods)


def method(config: Config) -> str:
    """The name of a configuration without what is turned to trade accuracy for speed."""
    kept: dict[str, Any] = {name: value for name, value in config.items() if name not in KNOBS}
    inner = kept.pop("decoder_config", None)
    if isinstance(inner, dict):
        kept["decoder_config"] = {name: value for name, value in inner.items() if not is_number(value)}
    return label(kept)


def front(points: Sequence[Point]) -> list[Point]:
    """The Pareto front: points that no other one reaches in both figures, by rising TPF and falling accuracy."""
    found: list[Point] = []
    for point in sorted(set(points), reverse=True):
        if not found or point[1] > found[-1][1]:
            found.append(point)
    return found[::-1]


def slowest_of(points: Sequence[Point]) -> Point:
    """The point of the lowest TPF, the most accurate one where several share it."""
    return min(points, key=lambda point: (point[0], -point[1]))
