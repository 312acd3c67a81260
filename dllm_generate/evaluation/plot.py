"""The curve of a tuning as a picture."""

from pathlib import Path
from typing import Any

from .harness import label
from .trials import Trial, Tuning


def check_plot(path: Path) -> None:
    """Raises ImportError without matplotlib, and ValueError for a kind of file that it does not write."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("`plot` needs matplotlib: pip install dllm_generate[viz]") from error
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ValueError(f"`plot` is {str(path)!r}, but its name must end in one of {sorted(f'.{k}' for k in kinds)}.")


def plot(tuning: Tuning, path: str | Path) -> None:
    """Draws accuracy, or agreement, over tokens per forward: all that was measured, the Pareto front and the winner.

    Args:
        tuning: what [`tune`] found.
        path: where to write; the ending says which kind of file.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: an ending that matplotlib does not know.
    """
    path = Path(path)
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes: Any = figure.add_subplot()
    points = lambda trials: list(zip(*[(trial.point[0], 100 * trial.point[1]) for trial in trials]))
    axes.plot(*points([tuning.reference, *tuning.front]), "-", color="0.6", zorder=1, label="Pareto front")
    for decoder in dict.fromkeys(_decoder(trial) for trial in tuning.measured):
        axes.scatter(*points([t for t in tuning.measured if _decoder(t) == decoder]), s=24, zorder=2, label=decoder)
    winner = points([tuning.winner])
    axes.scatter(*winner, s=150, facecolors="none", edgecolors="black", zorder=3, label=label(tuning.winner.config))
    axes.axhline(100 * tuning.reference.point[1] - tuning.loss, ls=":", color="0.6", label=f"loss of {tuning.loss:g}")
    axes.set(xlabel="tokens per forward", ylabel=f"{tuning.judged_by}, %", title=f"AUP {tuning.curves.overall:.0f}")
    axes.set_ylim(top=min(axes.get_ylim()[1], 102))
    axes.legend(fontsize="small", loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _decoder(trial: Trial) -> str:
    return str(trial.config.get("decoder", "default"))
