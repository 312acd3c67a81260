"""The denoising loop. One step reads from top to bottom; the loop around it is plain Python."""

from collections.abc import Callable, Iterable

import torch

from .caches import Plan
from .canvas import Canvas
from .forward import block_scores
from .progress import mostly_tied, reopened, with_progress
from .run import Run
from .sampling import Noise
from .schedules import Blocks
from .window import Group, Window, read


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
    return blocks, plan, Window.of(run, blocks, plan)


def step(run: Run, blocks: Blocks, plan: Plan, window: Window, groups: list[Group]) -> None:
    """One denoising step. Nothing of a row that does not run changes."""
    canvas, state, ran = run.canvas, run.state, blocks.ran
    batch, slots, length = blocks.columns.shape
    live, columns = blocks.live.flatten(), blocks.columns.flatten(1)
    run.decoder.begin(state, blocks.index.flatten(), live)
    state.noise = _noise(run, columns, slots)

    scores = run.constraints(block_scores(run, columns, window, groups, ran), canvas, columns)
    scores = scores.view(batch * slots, length, -1)

    open_mask = canvas.open.gather(1, columns).view(-1, length) & live[:, None]
    block_ids = canvas.input_ids.gather(1, columns).view(-1, length)
    if run.decoder.revocable:
        state.editable = canvas.editable.gather(1, columns).view(-1, length) & live[:, None]
    output = run.decoder(
        block_ids, scores, open_mask=open_mask, ran=live, state=state, threshold=_threshold(run, slots)
    )
    if output.reopen is not None and state.editable is not None:
        again = reopened(output.reopen, output.commit, open_mask, state.editable)
        canvas.reopen(columns, again.view(batch, -1))
        open_mask = open_mask | again
    if run.tied is not None:
        run.tied = run.tied | mostly_tied(output.confidence, open_mask)
    commit = with_progress(output.commit & open_mask, output.confidence, open_mask, blocks.force.flatten())

    tokens, confidence, commit = (x.view(batch, -1) for x in (output.tokens, output.confidence, commit))
    run.invalid = (~scores.amax(-1).isfinite() & open_mask).view(batch, -1).any(1)
    # The next host read raises. Until then nothing of such a step may reach a streamer or a criterion.
    canvas.commit(columns, tokens, confidence, commit & ~run.invalid[:, None], run.steps)
    state.step = state.step + live
    run.cache_state.advance(plan, blocks)
    run.schedule.advance(canvas, ran)


def _threshold(run: Run, slots: int) -> torch.Tensor | None:
    """The threshold `(R,)` that smoothing puts in place of the decoder's."""
    if run.soft is None:
        return None
    floor = run.decoder.threshold  # type: ignore[attr-defined]
    return run.soft.settings.threshold(run.steps, floor).repeat_interleave(slots)


def _noise(run: Run, columns: torch.Tensor, slots: int) -> Noise | None:
    if run.seed is None:
        return None
    row, steps = (x[:, None].expand(-1, slots).flatten() for x in (run.canvas.row, run.steps))
    positions = run.canvas.position_ids.gather(1, columns)
    return Noise(run.seed, row, steps, positions.view(row.numel(), -1))
