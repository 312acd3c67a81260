"""AUP, Accuracy Under Parallelism: one figure for a curve of accuracy over tokens per forward."""

import math
from collections.abc import Sequence

from ..registry import is_number

Point = tuple[float, float]

PENALTY, MARGIN = 3.0, 0.05


def aup(points: Sequence[Point], best: float | None = None) -> float:
    """Accuracy Under Parallelism of the d3LLM leaderboard (arXiv 2601.07568), in its units: percent times TPF.

    With points `(t_i, y_i)` in the order of rising tokens per forward (TPF) `t`, and accuracies `y` in percent,

        AUP = t_1 y_1 + sum over i > 1 of (t_i - t_{i-1}) (y_i w(y_i) + y_{i-1} w(y_{i-1})) / 2
        w(y) = min(exp(-3 (1 - y / best)), 1)

    The area begins at TPF 0, with a rectangle up to the slowest point, which is not weighted. Points whose accuracy is
    more than 5 points below that of the slowest one are left out; those that remain are joined by straight lines. A
    method that keeps an accuracy of 100 at a TPF of t scores 100 t.

    Of several points with the same TPF the most accurate one counts, so that the order of `points` does not matter.

    Args:
        points: `(tokens per forward, accuracy)`, accuracies as shares in [0, 1].
        best: the best accuracy that anything in the comparison reaches, a share; default that of `points`.

    Returns:
        The area, at least 0.

    Raises:
        ValueError: no points, a TPF that is not positive and finite, an accuracy or a `best` outside [0, 1], or a
            `best` that `points` exceed.

    Example:
        >>> aup([(1.0, 0.8), (3.0, 0.8)])
        240.0
    """
    if not points:
        raise ValueError("`points` is empty, but must hold at least one (tokens per forward, accuracy).")
    curve: dict[float, float] = {}
    for tpf, accuracy in points:
        if not is_number(tpf) or not math.isfinite(tpf) or tpf <= 0:
            raise ValueError(f"`points` has a TPF of {tpf!r}, but it must be a finite number > 0.")
        curve[tpf] = max(_share("points", accuracy), curve.get(tpf, 0.0))
    highest = max(curve.values())
    best = highest if best is None else _share("best", best)
    if best < highest:
        raise ValueError(f"`best` is {best!r}, but must be at least {highest!r}, the best accuracy of `points`.")
    floor = curve[min(curve)] - MARGIN
    # The tolerance is for accuracies that are exactly 5 points apart, such as 0.8 and 0.75.
    kept = [(tpf, 100 * accuracy) for tpf, accuracy in sorted(curve.items()) if accuracy >= floor - 1e-9]
    area = kept[0][0] * kept[0][1]
    for (before, low), (tpf, high) in zip(kept, kept[1:]):
        area += (tpf - before) * (_weighted(low, best) + _weighted(high, best)) / 2
    return area


def _share(name: str, value: float) -> float:
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"`{name}` has an accuracy of {value!r}, but it must be a share in [0, 1]: divide percents.")
    return value


def _weighted(percent: float, best: float) -> float:
    return percent * min(math.exp(-PENALTY * (1 - percent / (100 * best))), 1.0) if percent else 0.0
