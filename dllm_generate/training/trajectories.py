"""Trajectory distillation: learn to jump along one's own runs of decoding that ended right (arXiv 2510.08666)."""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..attention import block_causal
from ..families.base import Family
from ..registry import is_int, is_number, require
from .base import Corrupted, Objective, register_objective
from .data import Batch, Example, ExampleBatches, MakeExamples
from .losses import asked, asked_logits, certainty_loss, distillation_loss
from .objectives import copies_mask
from .paths import Trajectories, TrajectoryBatch
from .sources import Source, register_source

VIEWS, SKIPS = ("bidirectional", "block_causal", "pipelined"), ("any", "block", "end")


class TrajectoryBatches(ExampleBatches):
    """Batches of trajectories; every pass over them has another order. Batch `i` depends on `seed` and `i` alone.

    Args:
        trajectories: what to draw from.
        steps, rows, parts, seed: as for `ExampleBatches`.

    Raises:
        ValueError: fewer trajectories than `rows`; `parts` does not divide `rows`.
    """

    def __init__(self, trajectories: Trajectories, steps: int, rows: int = 64, parts: int = 4, seed: int = 0):
        require(len(trajectories) >= rows, "rows", rows, f"at most the number of trajectories, {len(trajectories)}")
        self.trajectories = trajectories
        super().__init__(self.examples, trajectories.facts.get("eos_token_id", 0), steps, rows, parts, seed)

    def chosen(self, seed: int, step: int, count: int) -> list[int]:
        """Numbers of the trajectories of a step."""
        each, within = divmod(step, len(self.trajectories) // count)
        order = random.Random(f"pass-{seed}-{each}").sample(range(len(self.trajectories)), len(self.trajectories))
        return order[within * count : (within + 1) * count]

    def examples(self, seed: int, step: int, count: int) -> list[Example]:
        """The texts of a step, without their steps."""
        return [self.trajectories.example(row) for row in self.chosen(seed, step, count)]

    def __getitem__(self, index: int) -> TrajectoryBatch:
        step, part = divmod(index, self.parts)
        size = self.rows // self.parts
        rows = self.chosen(self.seed, step, self.rows)[part * size : (part + 1) * size]
        return self.trajectories.batch(rows, random.Random(f"batch-{self.seed}-{index}").getrandbits(40))


@register_source("trajectories")
@dataclass(frozen=True)
class TrajectorySource(Source):
    """Recorded trajectories (`dllm-generate record`), for the objective `"trajectory"`.

    Args:
        file: path of the file, or a list of paths.

    Raises:
        ValueError: for a value that is no path; when they are read, as `Trajectories`.
    """

    file: str | Sequence[str]

    def __post_init__(self) -> None:
        files = [self.file] if isinstance(self.file, str) else self.file
        good = isinstance(files, (list, tuple)) and len(files) > 0 and all(isinstance(f, str) and f for f in files)
        require(good, "file", self.file, "the path of a .safetensors file, or a list of them")

    @functools.cached_property
    def trajectories(self) -> Trajectories:
        """What the files hold."""
        files = [self.file] if isinstance(self.file, str) else self.file
        return Trajectories.joined([Trajectories.load(file) for file in files])

    def read(self) -> None:
        require(len(self.trajectories) > 0, "file", self.file, "with at least one run")

    def validate(self, family: Family | None, vocabulary: int) -> None:
        self.trajectories.validate(None if family is None else family.mask_token_id, vocabulary)

    def examples(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> MakeExamples:
        return TrajectoryBatches(self._fitting(max_length), 1, 1, 1).examples

    def batches(
        self, tokenizer: PreTrainedTokenizerBase, *, steps: int, rows: int, parts: int, seed: int, max_length: int
    ) -> TrajectoryBatches:
        return TrajectoryBatches(self._fitting(max_length), steps, rows, parts, seed)

    def _fitting(self, max_length: int) -> Trajectories:
        lengths = self.trajectories.prompt_lengths + self.trajectories.canvas_lengths
        shortest = int(lengths.min())
        require(shortest <= max_length, "max_length", max_length, f"at least {shortest}, that of the shortest run")
        return self.trajectories.rows((lengths <= max_length).nonzero()[:, 0].tolist())


@register_objective("trajectory")
@dataclass(frozen=True)
class Trajectory(Objective):
    """Negative log-likelihood of the tokens that a run revealed between two of its states, given the earlier one.

    Args:
        mask_token_id: id that hides a token.
        skip: how far the later state lies ahead. An int: 1 to so many steps, drawn evenly; `"any"` (default): any later
            state; `"block"`: the end of the block in work; `"end"`: the end of the answer (with `"block_causal"`, of
            the block).
        view: what a masked token sees. `"bidirectional"` (default): the whole state. `"block_causal"`: its own block in
            a state of its own, and the finished blocks before; all blocks of a row are trained in one forward.
            `"pipelined"`: its own block and the blocks before as the state has them, finished or not (D2F).
        block_length: positions of a block. Default: the model's, or 32 if that is free.
        beta: weight of the entropy of tokens that are predicted right (dParallel, arXiv 2509.26488, recommends the
            default 2.0); 0 switches it off.
        certainty_temperature: of that entropy. Default 0.5.
        reduction: `"sum"` (default) over the tokens of a transition, then mean over the rows; or `"mean"` over both.
        logits_shift: a fact of the model.

    Raises:
        ValueError: a value that is not allowed; at the call, a batch without commit steps.

    Example:
        >>> batches = TrajectoryBatches(Trajectories.load("runs/paths.safetensors"), steps=500)
        >>> loss = Trajectory(tokenizer.mask_token_id, skip="block")(model, batches[0], torch.Generator())
    """

    mask_token_id: int
    skip: int | str = "any"
    view: str = "bidirectional"
    block_length: int = 32
    beta: float = 2.0
    certainty_temperature: float = 0.5
    reduction: str = "sum"
    logits_shift: bool = False

    def __post_init__(self) -> None:
        skip, length, warmth = self.skip, self.block_length, self.certainty_temperature
        known = skip in SKIPS or (isinstance(skip, int) and is_int(skip) and skip > 0)
        require(known, "skip", skip, f"one of {list(SKIPS)} or an int above 0")
        require(self.view in VIEWS, "view", self.view, f"one of {list(VIEWS)}")
        require(is_int(length) and length > 0, "block_length", length, "an int of at least 1")
        require(is_number(self.beta) and self.beta >= 0, "beta", self.beta, "a number of at least 0")
        require(is_number(warmth) and warmth > 0, "certainty_temperature", warmth, "a number above 0")
        require(self.reduction in ("sum", "mean"), "reduction", self.reduction, "'sum' or 'mean'")

    @property
    def result(self) -> str | None:  # type: ignore[override]
        return None if self.view == "bidirectional" else "block_causal"

    def validate(self, family: Family) -> None:
        super().validate(family)
        free = family.attention == "bidirectional"
        require(free or self.view != "bidirectional", "view", self.view, f"{VIEWS[1]!r} or {VIEWS[2]!r} for this model")
        known = family.prompt_is_one_block
        require(known, "objective", "trajectory", "another one for a model whose prompt is several blocks")
        fixed = family.block_length
        require(fixed in (None, self.block_length), "block_length", self.block_length, f"{fixed}, that of the model")

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        require(isinstance(batch, TrajectoryBatch), "batch", type(batch).__name__, "a TrajectoryBatch")
        assert isinstance(batch, TrajectoryBatch)
        begin, end = self.states(batch, generator)
        hidden = batch.commit_step >= begin
        weights = (hidden & (batch.commit_step < end)).float() / batch.rows
        if self.reduction == "mean":
            weights = weights / (weights > 0).sum(1, keepdim=True).clamp(min=1)
        made = self._copies if self.view == "block_causal" else self._text
        return made(batch, hidden, weights)

    def states(self, batch: TrajectoryBatch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws the two states.

        Returns:
            (B, G) each: the step before which the earlier state of the cell was seen, and likewise the later one.
        """
        step = batch.commit_step
        cell = torch.arange(step.shape[1]).expand_as(step)
        text = cell < batch.answer_lengths[:, None]
        block = cell // self.block_length
        # One state per row, or one per block of it.
        group = block if self.view == "block_causal" else torch.zeros_like(cell)
        last = _reduced(step + 1, group, text, "amax")
        begin = _reduced(step, group, text, "amin")
        begin = begin + (torch.rand(begin.shape, generator=generator) * (last - begin)).long()
        if self.skip == "block" and self.view != "block_causal":
            first = cell.masked_fill((step < begin) | ~text, step.shape[1] - 1).amin(1, keepdim=True)
            end = _reduced(step + 1, block, text, "amax").gather(1, first // self.block_length)
        else:
            farthest = last - begin if isinstance(self.skip, str) else (last - begin).clamp(max=self.skip)
            drawn = 1 + (torch.rand(begin.shape, generator=generator) * farthest).long()
            end = torch.minimum(begin + drawn, last) if self.skip == "any" or is_int(self.skip) else last
        return begin.gather(1, group), end.gather(1, group)

    def _text(self, batch: TrajectoryBatch, hidden: Tensor, weights: Tensor) -> Corrupted:
        cell = batch.answer_cells()
        index, inside = cell.clamp(0, hidden.shape[1] - 1), (cell >= 0) & batch.real()
        if self.view == "bidirectional":
            allowed = batch.real()[:, None, None, :].expand(-1, 1, batch.width, -1)
        else:
            block = self._blocks(cell)
            allowed = block_causal(batch.real(), block, block)[:, None]
        ids = batch.input_ids.masked_fill(hidden.gather(1, index) & inside, self.mask_token_id)
        return Corrupted(ids, batch.position_ids(), allowed, batch.input_ids, weights.gather(1, index) * inside)

    def _copies(self, batch: TrajectoryBatch, hidden: Tensor, weights: Tensor) -> Corrupted:
        used = -(-int(batch.answer_lengths.max()) // self.block_length) * self.block_length
        hidden, weights = hidden[:, :used], weights[:, :used]
        cell, clean = torch.arange(hidden.shape[1]).expand_as(hidden), batch.answer_cells()
        position = batch.prompt_lengths[:, None] + cell
        answer = batch.input_ids.gather(1, position)
        block = torch.cat([self._blocks(clean), self._blocks(cell)], 1)
        kind = torch.cat([torch.zeros(batch.width), torch.ones(cell.shape[1])])
        return Corrupted(
            torch.cat([batch.input_ids, answer.masked_fill(hidden, self.mask_token_id)], 1),
            torch.cat([batch.position_ids(), position], 1),
            copies_mask(block, kind, torch.cat([batch.real(), cell < batch.canvas_lengths[:, None]], 1)),
            torch.cat([batch.input_ids, answer], 1),
            torch.cat([torch.zeros(batch.input_ids.shape), weights], 1),
        )

    def _blocks(self, cell: Tensor) -> Tensor:
        return torch.where(cell < 0, 0, 1 + cell.clamp(min=0) // self.block_length)

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        """As `Objective`."""
        seen = self.example(batch, generator)
        logits = asked_logits(model, seen)
        labels, weights = (asked(values, seen, logits) for values in (seen.labels, seen.weights))
        loss = distillation_loss(logits, labels, weights)
        if not self.beta:
            return loss
        return loss + self.beta * certainty_loss(logits, labels, weights, self.certainty_temperature)


def _reduced(value: Tensor, group: Tensor, counts: Tensor, how: str) -> Tensor:
    """(B, n) largest or smallest value of each group among the cells that count; 0 for a group without any."""
    size = (value.shape[0], int(group.max()) + 1)
    neutral = 0 if how == "amax" else int(value.max()) + 1
    found = torch.full(size, neutral).scatter_reduce(1, group, value.masked_fill(~counts, neutral), how)
    any_counts = torch.zeros(size).scatter_reduce(1, group, counts.float(), "amax") > 0
    return found * any_counts
