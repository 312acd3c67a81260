"""The state of look-ahead decoding: guesses that run beside their rows."""

import dataclasses
from typing import TYPE_CHECKING

import torch

from .drafting import chain, tree
from .lookahead import Lookahead
from .rows import Rows

if TYPE_CHECKING:
    from .caches import Plan
    from .run import Run
    from .schedules import Blocks


@dataclasses.dataclass
class Drafts(Rows):
    """Every row of the batch has `copies` rows in the run, one behind the other: the row itself, and its drafts.

    A draft is a guess of the state that the row comes to in one of its next steps, within the block in work. All of
    them run in the same forward. A draft that the row turns out to reach has its own step done already: the row goes
    on from there, and so on to the next draft that is reached then. Behind every step all copies are equal again, and
    new guesses are made.

    Attributes:
        settings: the hyper-parameters.
        idle (`BoolTensor (R,)`): copies that hold no guess.
        input_ids, open (`(R, k)`): the block in work of every copy before its step.
    """

    settings: Lookahead
    idle: torch.Tensor
    input_ids: torch.Tensor | None = None
    open: torch.Tensor | None = None

    @classmethod
    def begin(cls, settings: Lookahead, rows: torch.Tensor) -> "Drafts":
        """The state before the first step, for `rows` `(B,)` numbers of the batch."""
        return cls(settings, torch.zeros_like(rows, dtype=torch.bool))

    @property
    def copies(self) -> int:
        """Rows of the run for each row of the batch."""
        return 1 + self.settings.drafts

    def fan_out(self, run: "Run") -> None:
        """Gives every row its copies. Without a guess they idle."""
        rows = torch.arange(self.idle.numel(), device=self.idle.device)
        run.select(rows.repeat_interleave(self.copies))
        run.drafts.idle = self._number(run) > 0  # type: ignore[union-attr]

    def trunk(self, run: "Run") -> "Run":
        """The run as it looks without copies: what observers are shown."""
        rows = torch.arange(0, run.steps.numel(), self.copies, device=run.steps.device)
        return dataclasses.replace(run, canvas=run.canvas.select(rows), drafts=None)

    def together(self, idle: torch.Tensor, ran: torch.Tensor) -> torch.Tensor:
        """Lets a row and its copies wait for each other.

        Args: `(R,)` copies that cannot take part in a step, and those that are to.
        """
        return (idle & ran).view(-1, self.copies).any(1).repeat_interleave(self.copies)

    def settle(self, run: "Run", blocks: "Blocks", plan: "Plan", scores: torch.Tensor, *, refreshed: bool) -> None:
        """Takes every row to the furthest draft that it reaches, and makes new guesses.

        Args:
            run: after the step.
            blocks, plan: of the step.
            scores: `(R, k, V)` of the step.
            refreshed: whether some copy rewrote more of the cache than its next window.
        """
        columns, own = blocks.columns[:, 0], torch.arange(run.steps.numel(), device=scores.device).view(-1, self.copies)
        reached = own[:, :1] + self._reached(run, blocks, plan, columns)[:, None]
        # Rows of which no copy ran keep their guesses: they have no scores to make others from.
        waits = ~blocks.ran.view(-1, self.copies).any(1, keepdim=True).expand_as(own)
        number = torch.where(waits, own, reached)
        run.select(number.flatten(), keys_and_values=refreshed)
        guess = run.drafts._guess  # type: ignore[union-attr]
        guess(run, blocks.index[:, 0], columns, scores[number[:, 0]], waits.flatten())

    def _number(self, run: "Run") -> torch.Tensor:
        """`(R,)`: 0 for the row itself, then 1, 2 ... for its drafts."""
        return torch.arange(run.steps.numel(), device=run.steps.device) % self.copies

    def _reached(self, run: "Run", blocks: "Blocks", plan: "Plan", columns: torch.Tensor) -> torch.Tensor:
        """`(B,)`: the copy that each row goes on from. Its canvas gets the confidences of the steps on the way."""
        canvas, copies, length = run.canvas, self.copies, columns.shape[1]
        if self.input_ids is None or self.open is None:
            return torch.zeros_like(canvas.row[::copies])
        ids, opened = (x.view(-1, copies, length) for x in (self.input_ids, self.open))
        after_ids, after_open, confidence, commit_step = (
            grid.gather(1, columns).view(-1, copies, length)
            for grid in (canvas.input_ids, canvas.open, canvas.confidence, canvas.commit_step)
        )
        # Behind a refresh the keys and values of other copies are of no use.
        ends = canvas.finished if run.cache is None else canvas.finished | plan.refresh
        # The scratch column stands in for what a block is short of; it may hold anything.
        ids, after_ids = (x.masked_fill((columns == 0).view_as(x), 0) for x in (ids, after_ids))
        follows = self._follows(ids, opened, after_ids, after_open)
        follows = follows & blocks.ran.view(-1, 1, copies) & ~ends.view(-1, copies, 1)
        if self.settings.lossless:
            # The number of a step counts, too: a row may come to a guess sooner than the guess has it.
            steps = run.steps.view(-1, copies)
            follows = follows & (steps[:, :, None] == (run.steps - blocks.ran.long()).view(-1, 1, copies))

        known = (~opened).sum(-1)
        here, row = torch.zeros_like(known[:, 0]), torch.arange(known.shape[0], device=known.device)
        confidence_here, step_here = confidence[:, 0], commit_step[:, 0]
        for _ in range(self.settings.drafts):
            furthest, there = torch.where(follows[row, here], known, -1).max(-1)
            here = torch.where(furthest >= 0, there, here)
            undecided = opened[row, here]
            confidence_here = torch.where(undecided, confidence[row, here], confidence_here)
            step_here = torch.where(undecided, commit_step[row, here], step_here)
        copy = (row * copies + here)[:, None]
        canvas.confidence[copy, columns[::copies]] = confidence_here
        canvas.commit_step[copy, columns[::copies]] = step_here
        return here

    def _follows(
        self, ids: torch.Tensor, opened: torch.Tensor, after_ids: torch.Tensor, after_open: torch.Tensor
    ) -> torch.Tensor:
        """`(B, copies, copies)`: whether the second copy's state before the step follows from the first's behind it.

        Args: blocks `(B, copies, k)` before the step and behind it.
        """
        equal = (after_ids[:, :, None] == ids[:, None]) & (after_open[:, :, None] == opened[:, None])
        if not self.settings.lossless:
            equal |= opened[:, None]
        known = (~opened).sum(-1)
        return equal.all(-1) & (known[:, None] > known[:, :, None])

    def _guess(
        self, run: "Run", index: torch.Tensor, columns: torch.Tensor, scores: torch.Tensor, waits: torch.Tensor
    ) -> None:
        """Writes new guesses into the copies, where the rows go on in the block that the scores are for.

        Args: waits `(R,)`: copies that keep the guess they have.
        """
        copies, canvas = self.copies, run.canvas
        blocks = run.schedule.active(canvas)
        opened = canvas.open.gather(1, columns) & (blocks.index[:, 0] == index)[:, None] & ~canvas.finished[:, None]
        first = torch.arange(0, run.steps.numel(), copies, device=index.device)
        if self.settings.lossless:
            row = dataclasses.replace(run, state=run.state.select(first), canvas=canvas.select(first))
            row.cache_state = run.cache_state.select(first)
            guesses = chain(row, columns[first], scores, opened[first], self.settings.drafts)
        else:
            guesses = tree(scores, opened[first], self.settings.drafts)
        tokens, chosen, ahead = (self._beside(x) for x in guesses)
        # A draft that completes its block would run in the next one, on other keys and values.
        chosen = chosen & (opened & ~chosen).any(1, keepdim=True) & ~waits[:, None]
        self.idle = torch.where(waits, self.idle, ~chosen.any(1) & (self._number(run) > 0))
        ahead = torch.where(chosen.any(1), ahead, 0)
        canvas.commit(columns, tokens, torch.zeros_like(tokens, dtype=torch.float32), chosen, run.steps)
        run.state.step = run.state.step + ahead
        run.cache_state.steps, run.cache_state.age = run.cache_state.steps + ahead, run.cache_state.age + ahead
        self.input_ids, self.open = canvas.input_ids.gather(1, columns), canvas.open.gather(1, columns)
        if run.cache is not None:
            # The refresh of a guess would be a further forward, as wide as the canvas.
            refresh = run.policy.plan(canvas, run.schedule.active(canvas), run.cache_state).refresh
            self.idle = self.idle | refresh & (self._number(run) > 0)

    def _beside(self, guesses: torch.Tensor) -> torch.Tensor:
        """Lays guesses `(B, d, ...)` out over the copies `(R, ...)`; zeros for the rows themselves."""
        laid = guesses.new_zeros(guesses.shape[0], self.copies, *guesses.shape[2:])
        laid[:, 1 : 1 + guesses.shape[1]] = guesses
        return laid.flatten(0, 1)
