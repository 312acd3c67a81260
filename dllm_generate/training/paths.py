"""Recorded runs of decoding: their file, and batches of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from ..registry import is_int, require
from .data import Batch, Example

_GRIDS, _COUNTS = ("prompt_ids", "answer_ids", "commit_step"), ("prompt_lengths", "answer_lengths", "canvas_lengths")
_TENSORS = (*_GRIDS, *_COUNTS)
_IDS = ("mask_token_id", "eos_token_id")


@dataclass(frozen=True)
class Trajectories:
    """N runs of decoding, each with the step that committed every token.

    Args:
        prompt_ids: (N, P) ids, filled up behind each prompt.
        prompt_lengths: (N,) tokens of the prompts.
        answer_ids: (N, G) ids of the whole canvas, also behind the first EOS.
        answer_lengths: (N,) tokens up to the first EOS, which counts; those of the canvas without one.
        commit_step: (N, G) step that committed the token, counted from 0.
        canvas_lengths: (N,) columns of the canvas.
        facts: how they were made, as plain JSON values; `mask_token_id` and `eos_token_id` among them.

    Raises:
        ValueError: tensors whose shapes, types or lengths do not fit together, a negative id, and a cell of a canvas
            that no step committed: the run was cut off.
    """

    prompt_ids: Tensor
    prompt_lengths: Tensor
    answer_ids: Tensor
    answer_lengths: Tensor
    commit_step: Tensor
    canvas_lengths: Tensor
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, size in zip(_TENSORS, (2, 2, 2, 1, 1, 1), strict=True):
            value = getattr(self, name)
            require(value.ndim == size, name, f"{value.ndim}-dimensional", f"{size}-dimensional")
            require(not value.is_floating_point(), name, value.dtype, "of ints")
            require(len(value) == len(self), name, f"{len(value)} rows", f"{len(self)}, as `prompt_ids`")
        room, steps = self.answer_ids.shape[1], self.commit_step
        require(steps.shape[1] == room, "commit_step", f"{steps.shape[1]} columns", f"{room}, as `answer_ids`")
        limits = (self.prompt_ids.shape[1], self.canvas_lengths, room)
        for name, limit in zip(_COUNTS, limits, strict=True):
            value = getattr(self, name)
            good = (value >= 1) & (value <= limit)
            require(bool(good.all()), name, value[~good].tolist(), "from 1 to what the row has room for")
        for name in ("prompt_ids", "answer_ids"):
            negative = getattr(self, name) < 0
            require(not negative.any(), name, getattr(self, name)[negative].tolist(), "ids of at least 0")
        open_cells = (steps < 0) & (torch.arange(room, device=steps.device) < self.canvas_lengths[:, None])
        cut = open_cells.any(1).nonzero()[:, 0].tolist()
        require(not cut, "commit_step", f"below 0 in rows {cut}", "at least 0 in the whole canvas: these were cut off")

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file; the facts are in its metadata."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name).int().contiguous() for name in _TENSORS}
        save_file(tensors, path, {"facts": json.dumps(self.facts)})

    @classmethod
    def load(cls, path: str | Path) -> "Trajectories":
        """Reads what `save` wrote.

        Raises:
            ValueError: a file of another kind or with damage, by its name.
            OSError: a file that is not there.
        """
        require(not Path(path).is_dir(), "path", str(path), "a file, not a folder")
        try:
            with safe_open(path, "pt") as file:
                facts, names = json.loads((file.metadata() or {}).get("facts", "null")), set(file.keys())
                known = isinstance(facts, dict) and all(is_int(facts.get(key)) and facts[key] >= 0 for key in _IDS)
                require(known and names == set(_TENSORS), "path", str(path), "a file of Trajectories.save")
                found = cls(**{name: file.get_tensor(name) for name in _TENSORS}, facts=facts)
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{path} holds no whole recording: {error}") from error
        return replace(found, **{name: getattr(found, name).long() for name in _TENSORS})

    @classmethod
    def joined(cls, parts: "Sequence[Trajectories]") -> "Trajectories":
        """One after the other; the facts are those of the first. Raises ValueError for parts of different models."""
        for name in _IDS:
            ids = [part.facts.get(name) for part in parts]
            require(len(set(ids)) == 1, name, ids, "the same in all recordings that are joined")
        made = {name: torch.cat([getattr(part, name) for part in parts]) for name in _COUNTS}
        for name in _GRIDS:
            grids = [getattr(part, name) for part in parts]
            width = max(grid.shape[1] for grid in grids)
            made[name] = torch.cat([F.pad(grid, (0, width - grid.shape[1])) for grid in grids])
        return cls(**made, facts=parts[0].facts)

    def validate(self, mask_token_id: int | None, vocabulary: int) -> None:
        """Raises ValueError unless they can be runs of a model.

        Args:
            mask_token_id: of the model; None where it is not known.
            vocabulary: number of ids that the model takes.
        """
        own = self.facts.get("mask_token_id")
        require(mask_token_id in (None, own), "mask_token_id", own, f"{mask_token_id}, as in the model to be trained")
        largest = max((int(ids.max()) for ids in (self.prompt_ids, self.answer_ids) if ids.numel()), default=0)
        require(largest < vocabulary, "trajectories", f"with the id {largest}", f"below {vocabulary}, the model's ids")

    def rows(self, numbers: Sequence[int]) -> "Trajectories":
        """Some of them."""
        return replace(self, **{name: getattr(self, name)[list(numbers)] for name in _TENSORS})

    def example(self, row: int) -> Example:
        """Ids of the prompt and of the answer, its first EOS included."""
        prompt = self.prompt_ids[row, : self.prompt_lengths[row]]
        return prompt.tolist(), self.answer_ids[row, : self.answer_lengths[row]].tolist()

    def batch(self, rows: Sequence[int], seed: int = 0) -> "TrajectoryBatch":
        """Some of them, as a batch whose canvas is the recorded one."""
        some = self.rows(rows)
        room = int(some.canvas_lengths.max())
        cells = torch.arange(int(some.prompt_lengths.max()) + room) - some.prompt_lengths[:, None]
        prompt_ids = F.pad(some.prompt_ids, (0, cells.shape[1]))[:, : cells.shape[1]]
        ids = torch.where(cells < 0, prompt_ids, some.answer_ids.gather(1, cells.clamp(0, room - 1)))
        counts = (some.prompt_lengths, some.answer_lengths, some.canvas_lengths)
        return TrajectoryBatch(ids, *counts, seed, some.commit_step[:, :room])


@dataclass(frozen=True)
class TrajectoryBatch(Batch):
    """A `Batch` whose rows know when their tokens were committed.

    Args:
        commit_step: (B, G) step of each answer cell.
    """

    commit_step: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
