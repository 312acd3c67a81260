"""What was measured of the candidates of a tuning, and what it says."""

import copy
import dataclasses
from typing import Any

from ..config import DiffusionGenerationConfig
from ..text import Reply
from .curves import Curves, front
from .harness import Config, Score
from .statistics import Interval, mean, ratio


@dataclasses.dataclass
class Trial:
    """A candidate, and what it did on the prompts so far.

    Attributes:
        config: options of generate.
        replies, right: one per prompt.
        seconds: wall time of all calls of generate.
        difference: accuracy minus that of the reference on the same prompts, as a share.
    """

    config: Config
    replies: list[Reply] = dataclasses.field(default_factory=list)
    right: list[bool] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    difference: Interval = dataclasses.field(default_factory=lambda: Interval(0.0, -1.0, 1.0))

    @property
    def score(self) -> Score:
        """Accuracy (or agreement), tokens per forward and forwards."""
        tokens, forwards = [float(r.tokens) for r in self.replies], [float(r.forwards) for r in self.replies]
        return Score(len(self.right), mean([float(x) for x in self.right]), ratio(tokens, forwards), mean(forwards))

    @property
    def tokens_per_second(self) -> float:
        """Text tokens of all prompts per second."""
        return sum(r.tokens for r in self.replies) / self.seconds

    @property
    def point(self) -> tuple[float, float]:
        """Tokens per forward, and accuracy as a share."""
        score = self.score
        return score.tokens_per_forward.value, score.accuracy.value

    def rank(self, metric: str) -> tuple[float, float]:
        """What is larger for the faster one; among equals by the first figure, the second one decides."""
        tpf = self.point[0]
        return (float(f"{tpf:.3g}"), self.tokens_per_second) if metric == "tpf" else (self.tokens_per_second, tpf)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "config": self.config,
            **dataclasses.asdict(self.score),
            "difference": dataclasses.asdict(self.difference),
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
        }


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What tuning found.

    Attributes:
        reference: one token per step, on all prompts.
        trials: candidates that were measured on all prompts, the fastest first.
        rejected: the others, on the prompts that they saw: they lost more than allowed, or were too slow to go on.
        winner: one of `trials`, or `reference`.
        judged_by: `"accuracy"` or `"agreement"`.
        loss, metric, certain: as given to [`tune`].
    """

    reference: Trial
    trials: list[Trial]
    rejected: list[Trial]
    winner: Trial
    judged_by: str
    loss: float
    metric: str
    certain: bool

    @property
    def measured(self) -> list[Trial]:
        """The reference and the trials."""
        return [self.reference, *self.trials]

    @property
    def front(self) -> list[Trial]:
        """Of those, the ones that no other reaches both in tokens per forward and in accuracy; the slowest first."""
        points = front([trial.point for trial in self.measured])
        return [next(trial for trial in self.measured if trial.point == point) for point in points]

    @property
    def curves(self) -> Curves:
        """AUP of all that was measured on all prompts."""
        return Curves.of([trial.config for trial in self.measured], [trial.point for trial in self.measured])

    @property
    def notes(self) -> list[str]:
        """What to know before trusting the winner."""
        notes, n, reach = [], len(self.reference.right), -100 * self.winner.difference.low
        if self.winner is self.reference:
            notes.append("No candidate is faster than one token per step and stays within the loss.")
        elif reach > self.loss + 1e-9:
            notes.append(
                f"{n} prompts are too few to tell: the 95% interval of the winner's loss reaches {reach:.1f} points, "
                f"beyond {self.loss:g}."
            )
        if not any(self.reference.right):
            notes.append(
                "One token per step answers no prompt right, so that nothing can be lost: check the prompts, "
                "their answers and `max_new_tokens`."
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **{name: getattr(self, name) for name in ("judged_by", "loss", "metric", "certain", "notes")},
            "winner": self.winner.to_dict(),
            "reference": self.reference.to_dict(),
            **{name: [trial.to_dict() for trial in getattr(self, name)] for name in ("trials", "front", "rejected")},
            "aup": dataclasses.asdict(self.curves),
        }

    def generation_config(self, model: Any) -> DiffusionGenerationConfig:
        """The generation config of a model with the winner's options, which `save_pretrained` writes to a folder."""
        config = DiffusionGenerationConfig.upgrade(copy.deepcopy(model.generation_config))
        config.update(**self.winner.config)
        config.validate()
        return config
