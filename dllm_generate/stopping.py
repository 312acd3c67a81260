"""Stopping criteria, evaluated on the committed prefix of every row."""

import dataclasses

import torch
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from .output import Ending
from .run import Run


@dataclasses.dataclass
class Stopper:
    """Ends rows by transformers' stopping criteria.

    A criterion sees what it would see in left-to-right generation: the ids up to each token in turn, as soon as
    everything up to that token is committed. So a string that ends within a block is not missed. Where a decoder may
    take commits back, only finished blocks count.

    Args:
        criteria: those that look at ids; EOS and length are the loop's own.
        clock: `max_time`, checked once per step.
        endings: filled in with the rows that were ended.
    """

    criteria: StoppingCriteriaList
    clock: MaxTimeCriteria | None
    endings: dict[int, Ending] = dataclasses.field(default_factory=dict)
    _seen: dict[int, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def build(cls, criteria: StoppingCriteriaList) -> "Stopper":
        """Sorts a prepared list of criteria."""
        clocks = [c for c in criteria if isinstance(c, MaxTimeCriteria)]
        own = (MaxTimeCriteria, MaxLengthCriteria, EosTokenCriteria)
        return cls(StoppingCriteriaList(c for c in criteria if not isinstance(c, own)), clocks[0] if clocks else None)

    @property
    def is_needed(self) -> bool:
        """False if there is nothing to check."""
        return bool(self.criteria) or self.clock is not None

    def __call__(self, run: Run) -> None:
        """Marks the rows that end. Reads the canvas on the host."""
        canvas = run.canvas
        ended = [self._ending(run, place) for place in range(canvas.row.numel())] if self.criteria else []
        late = self.clock is not None and bool(self.clock(canvas.input_ids, None).all())
        stops = []
        for place, row in enumerate(canvas.row.tolist()):
            ending = ended[place] if ended else None
            if ending is None and late and not canvas.finished[place]:
                ending = Ending(int(canvas.first_open[place]), "max_time")
            if ending is not None:
                self.endings[row] = ending
            stops.append(ending is not None)
        canvas.finished = canvas.finished | torch.tensor(stops, device=canvas.finished.device)

    def _ending(self, run: Run, place: int) -> Ending | None:
        canvas, row = run.canvas, int(run.canvas.row[place])
        begin = self._seen.get(row, int(canvas.origin[place]))
        end = min(int(canvas.first_open[place]), int(canvas.limit[place]), int(canvas.first_eos[place]))
        if canvas.revocable and not canvas.finished[place]:
            end = min(end, int(run.schedule.settled(canvas)[place]))
        self._seen[row] = max(begin, end)
        for column in range(begin, end):
            prefix = canvas.input_ids[place : place + 1, canvas.first : column + 1]
            if bool(self.criteria(prefix, None).all()):  # type: ignore[arg-type]
                return Ending(column + 1, "stop")
        return None
