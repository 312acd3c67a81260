"""The denoising loop. One step reads from top to bottom; the loop around it is plain Python."""

import dataclasses
from collections.abc import Callable, Iterable

import torch

from .backbone import Backbone
from .caches import CachePolicy, DiffusionCache, Plan
from .caches.base import CacheState
from .canvas import Canvas
from .constraints import Constraints
from .decoders import Decoder, DecoderState
from .guidance import Guidance, View
from .progress import reopened, with_progress
from .sampling import Noise
from .schedules import Blocks, Schedule


@dataclasses.dataclass
class Run:
    """One call of generate: its parts, and the state of the rows that are still running.

    Attributes:
        invalid (`BoolTensor (B,)`): rows with a score that is not finite at a position that they could commit.
        seed (`int` or None): where random numbers are wanted.
    """

    backbone: Backbone
    schedule: Schedule
    policy: CachePolicy
    decoder: Decoder
    canvas: Canvas
    state: DecoderState
    cache_state: CacheState
    constraints: Constraints
    invalid: torch.Tensor
    logits_shift: bool = False
    cache: DiffusionCache | None = None
    guidance: Guidance | None = None
    seed: int | None = None

    @property
    def steps(self) -> torch.Tensor:
        """`(B,)`: forwards in which the row ran."""
        return self.cache_state.steps

    def select(self, rows: torch.Tensor) -> None:
        """Goes on with `rows` only."""
        batch, slots = self.steps.numel(), self.state.block.numel() // self.steps.numel()
        flat = (rows[:, None] * slots + torch.arange(slots, device=rows.device)).flatten()
        if self.cache is not None:
            halves = 1 if self.guidance is None else 2
            self.cache.batch_select_indices(torch.cat([rows + half * batch for half in range(halves)]))
        self.state = self.state.select(flat)
        for name in ("canvas", "cache_state", "constraints", "guidance"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name).select(rows))
        self.invalid = self.invalid[rows]


@dataclasses.dataclass
class Window:
    """The columns that the model rows of a step recompute: `[lo, hi)`, each `(M,)`.

    There are as many model rows as rows of the batch, or twice as many under guidance.
    """

    lo: torch.Tensor
    hi: torch.Tensor


@dataclasses.dataclass
class Launch:
    """What the host knows of the next step.

    Attributes:
        groups: model rows and window width of each forward. Rows of similar width share one: padding a narrow window
            to the width of a refresh costs more than a second forward.
        running: rows that are not finished.
    """

    groups: list[tuple[list[int], int]]
    running: list[int]


def denoise(run: Run, observers: Iterable[Callable[[Run], None]] = ()) -> tuple[Canvas, torch.Tensor]:
    """Runs every row to its end.

    Args:
        run: consumed by the call.
        observers: called after every step; they may mark rows as finished.

    Returns:
        The canvas, and the forwards of each row `(B,)`.

    Raises:
        ValueError: naming the rows, if a model gives scores that are not finite, or everything is banned.
    """
    canvas, steps = run.canvas.select(run.canvas.row), run.steps.clone()
    while True:
        blocks, plan, window = prepare(run)
        launch = read(run, blocks, window)
        if len(launch.running) < run.steps.numel():
            canvas.take(run.canvas)
            steps[run.canvas.row] = run.steps
            if not launch.running:
                return canvas, steps
            run.select(torch.tensor(launch.running, device=steps.device))
            blocks, plan, window = prepare(run)
        if launch.groups:
            step(run, blocks, plan, window, launch.groups)
        for observer in observers:
            observer(run)


def prepare(run: Run) -> tuple[Blocks, Plan, Window]:
    """Chooses what the next step works on. Changes nothing."""
    blocks = run.schedule.active(run.canvas)
    plan = run.policy.plan(run.canvas, blocks, run.cache_state)
    lo, hi, start = plan.lo, plan.hi, run.canvas.start
    if run.guidance is not None:
        start = torch.cat([start, run.guidance.prompt.start])
        lo, hi = torch.cat([lo, torch.where(plan.refresh, run.guidance.prompt.start, lo)]), torch.cat([hi, hi])
    if run.logits_shift:
        # The hidden row that predicts a position lies one to its left.
        lo = torch.maximum(lo - 1, start)
    return blocks, plan, Window(lo, hi)


def read(run: Run, blocks: Blocks, window: Window) -> Launch:
    """The one host read of a step. Raises ValueError for rows with invalid scores."""
    batch, halves = run.steps.numel(), window.lo.numel() // run.steps.numel()
    facts = [window.lo, window.hi, blocks.ran.long(), run.canvas.finished.long(), run.invalid.long()]
    packed = torch.cat(facts).tolist()
    lo, hi = packed[: batch * halves], packed[batch * halves : 2 * batch * halves]
    ran, finished, invalid = (packed[-3 * batch :][i * batch : (i + 1) * batch] for i in range(3))
    if any(invalid):
        rows = [row for row, bad in zip(run.canvas.row.tolist(), invalid) if bad]
        raise ValueError(
            f"The model gave NaN or infinite logits, or every token is banned, at an open position of row {rows}. "
            "Check the weights, the dtype and the banned tokens."
        )
    running = [row for row in range(batch) if not finished[row]]
    classes: dict[int, tuple[list[int], int]] = {}
    for half in range(halves):
        for place, row in enumerate(running):
            if ran[row]:
                width = hi[half * batch + row] - lo[half * batch + row]
                rows, widest = classes.get((width - 1).bit_length(), ([], 0))
                classes[(width - 1).bit_length()] = (rows + [half * len(running) + place], max(widest, width))
    return Launch(list(classes.values()), running)


def step(run: Run, blocks: Blocks, plan: Plan, window: Window, groups: list[tuple[list[int], int]]) -> None:
    """One denoising step. Nothing of a row that does not run changes."""
    canvas, state, ran = run.canvas, run.state, blocks.ran
    batch, slots, length = blocks.columns.shape
    live, columns = blocks.live.flatten(), blocks.columns.flatten(1)
    run.decoder.begin(state, blocks.index.flatten(), live)
    state.noise = _noise(run, columns, slots)

    hidden = _hidden(run, columns, window, groups, ran)
    scores = run.backbone.scores(hidden)
    if run.guidance is not None:
        scores = run.guidance.merge(scores)
    scores = run.constraints(scores, canvas, columns).view(batch * slots, length, -1)

    open_mask = canvas.open.gather(1, columns).view(-1, length) & live[:, None]
    block_ids = canvas.input_ids.gather(1, columns).view(-1, length)
    if run.decoder.revocable:
        state.editable = canvas.editable.gather(1, columns).view(-1, length) & live[:, None]
    output = run.decoder(block_ids, scores, open_mask=open_mask, ran=live, state=state)
    if output.reopen is not None and state.editable is not None:
        again = reopened(output.reopen, output.commit, open_mask, state.editable)
        canvas.reopen(columns, again.view(batch, -1))
        open_mask = open_mask | again
    commit = with_progress(output.commit & open_mask, output.confidence, open_mask, blocks.force.flatten())

    tokens, confidence, commit = (x.view(batch, -1) for x in (output.tokens, output.confidence, commit))
    run.invalid = (~scores.amax(-1).isfinite() & open_mask).view(batch, -1).any(1)
    # The next host read raises. Until then nothing of such a step may reach a streamer or a criterion.
    canvas.commit(columns, tokens, confidence, commit & ~run.invalid[:, None], run.steps)
    state.step = state.step + live
    run.cache_state.advance(plan, blocks)
    run.schedule.advance(canvas, ran)


def _noise(run: Run, columns: torch.Tensor, slots: int) -> Noise | None:
    if run.seed is None:
        return None
    row, steps = (x[:, None].expand(-1, slots).flatten() for x in (run.canvas.row, run.steps))
    positions = run.canvas.position_ids.gather(1, columns)
    return Noise(run.seed, row, steps, positions.view(row.numel(), -1))


def _hidden(
    run: Run, columns: torch.Tensor, window: Window, groups: list[tuple[list[int], int]], ran: torch.Tensor
) -> torch.Tensor:
    """Runs the body on the windows, and returns the hidden rows `(M, n, d)` that predict `columns` `(B, n)`."""
    view = View.of(run.canvas) if run.guidance is None else run.guidance.doubled(run.canvas)
    if run.guidance is not None:
        columns, ran = torch.cat([columns, columns]), torch.cat([ran, ran])
    if run.logits_shift:
        columns = torch.maximum(columns - 1, view.start[:, None])
    source = columns - window.lo[:, None]
    if len(groups) == 1 and len(groups[0][0]) == ran.numel():
        return _forward(run, view, window, groups[0][1], source, ran, None)
    merged = torch.zeros(())
    for rows, width in groups:
        picked = torch.tensor(rows, device=columns.device)
        part = _forward(run, view, window, width, source, ran, picked)
        if not merged.dim():
            merged = part.new_zeros(ran.numel(), *part.shape[1:])
        merged.index_copy_(0, picked, part)
    return merged


def _forward(
    run: Run,
    view: View,
    window: Window,
    width: int,
    source: torch.Tensor,
    ran: torch.Tensor,
    rows: torch.Tensor | None,
) -> torch.Tensor:
    """One call of the body on the windows of `rows`, padded to `width`; returns the rows at `source` `(n, k)`."""
    lo, hi = window.lo, window.hi
    if rows is not None:
        view, lo, hi, source, ran = view.select(rows), lo[rows], hi[rows], source[rows], ran[rows]
    columns = lo[:, None] + torch.arange(width, device=lo.device)
    # Entries that stand for no cell go to the scratch column: clamped onto a real one they would overwrite it.
    columns = torch.where((columns < hi[:, None]) & ran[:, None], columns, 0)
    if run.cache is None:
        visible = view.real.gather(1, columns)
    else:
        visible = torch.nn.functional.pad(view.real, (0, run.cache.slots - view.real.shape[1]))
        run.cache.seek(columns, rows)
    hidden = run.backbone.hidden_states(
        view.input_ids.gather(1, columns), view.position_ids.gather(1, columns), visible, run.cache
    )
    if run.cache is not None:
        run.cache.release()
    source = source.clamp(0, width - 1)[..., None]
    return hidden.gather(1, source.expand(-1, -1, hidden.shape[-1]))
