"""The denoising loop. One step reads from top to bottom; the loop around it is plain Python."""

from collections.abc import Callable, Iterable

import torch

from .caches import Plan
from .canvas import Canvas
from .forward import block_scores
from .noising import refill
from .progress import checked, faults, mostly_tied, revised, with_progress
from .run import Run
from .schedules import Blocks
from .window import Group, Launch, Window, read


def denoise(run: Run, observers: Iterable[Callable[[Run], None]] = ()) -> Canvas:
    """Runs every row to its end.

    Args:
        run: consumed by the call.
        observers: called after every launch; they may mark rows as finished.

    Returns:
        The canvas.

    Raises:
        ValueError: naming the rows, if a model gives scores that are not finite, everything is banned, or a decoder
            predicts the mask id; naming the decoder, if what it returns has a wrong form.
    """
    canvas = run.canvas.select(run.canvas.row)
    if run.drafts is not None:
        run.drafts.fan_out(run)
    while True:
        blocks, plan, window = prepare(run)
        launch = read(run, blocks, plan, window)
        if len(launch.running) < run.steps.numel():
            canvas.take(run.canvas)
            if not launch.running:
                return canvas
            run.select(torch.tensor(launch.running, device=run.steps.device))
            blocks, plan, window = prepare(run)
        if launch.groups:
            # A refresh widens the window for one step only.
            for again in range(1 if launch.refresh else run.unroll_steps):
                if again:
                    blocks, plan, window = prepare(run, launch)
                advance(run, blocks, plan, window, launch)
        _show(run, observers)


def prepare(run: Run, launch: Launch | None = None) -> tuple[Blocks, Plan, Window]:
    """Chooses what the next step works on. Changes nothing.

    Args:
        launch: of an earlier step, to be used again: rows that do not fit in idle. None if the host is going to read.
    """
    blocks = run.schedule.active(run.canvas)
    if run.drafts is not None:
        blocks = blocks.without(run.drafts.idle)
    plan = run.policy.plan(run.canvas, blocks, run.cache_state)
    window = Window.of(run, blocks, plan)
    if launch is None:
        return blocks, plan, window
    idle = launch.misfits(window, blocks)
    if run.drafts is not None:
        idle = run.drafts.together(idle if run.cache is None else idle | plan.refresh, blocks.ran)
    return blocks.without(idle), plan, window


def advance(run: Run, blocks: Blocks, plan: Plan, window: Window, launch: Launch) -> None:
    """A step, and what drafts make of it."""
    blocks = blocks.cut(launch.slots)
    scores = step(run, blocks, plan, window, launch.groups)
    if run.drafts is not None:
        run.drafts.settle(run, blocks, plan, scores, refreshed=launch.refresh)


def _show(run: Run, observers: Iterable[Callable[[Run], None]]) -> None:
    shown = run if run.drafts is None or not observers else run.drafts.trunk(run)
    for observer in observers:
        observer(shown)
    if run.drafts is not None and shown is not run:
        run.canvas.finished = shown.canvas.finished.repeat_interleave(run.drafts.copies)


def step(run: Run, blocks: Blocks, plan: Plan, window: Window, groups: list[Group]) -> torch.Tensor:
    """One denoising step. Nothing of a row that does not run changes.

    Returns:
        Scores `(B * slots, k, V)`, after bans and processors.
    """
    canvas, ran = run.canvas, blocks.ran
    batch, slots, length = blocks.columns.shape
    live, columns = blocks.live.flatten(), blocks.columns.flatten(1)
    run.state = state = run.state.following(blocks.index)
    run.decoder.begin(state, blocks.index.flatten(), live)
    state.noise = run.noise(columns, slots)

    scores = run.constraints(block_scores(run, columns, window, groups, ran), canvas, columns)
    scores = scores.view(batch * slots, length, -1)

    open_mask = canvas.open.gather(1, columns).view(-1, length) & live[:, None]
    block_ids = canvas.input_ids.gather(1, columns).view(-1, length)
    if run.decoder.revocable:
        state.editable = canvas.editable.gather(1, columns).view(-1, length) & live[:, None]
    threshold = _threshold(run, slots)
    output = run.decoder(block_ids, scores, open_mask=open_mask, ran=live, state=state, threshold=threshold)
    output = checked(output, run.decoder, open_mask)
    run.backbone.absorb(scores, output.temperature, blocks)
    if state.editable is not None:
        again, output.commit = revised(output, open_mask, state.editable)
        canvas.reopen(columns, again.view(batch, -1))
        open_mask = open_mask | again
    if run.tied is not None:
        run.tied = run.tied | mostly_tied(output.confidence, open_mask)
    force = blocks.force.flatten() if output.waits is None else blocks.force.flatten() & ~output.waits
    commit = with_progress(output.commit & open_mask, output.priority, open_mask, force)

    fault = faults(scores, output.tokens, open_mask, commit, canvas.mask_token_id)
    tokens, confidence, commit = (x.view(batch, -1) for x in (output.tokens, output.confidence, commit))
    run.fault = run.fault | fault.view(batch, -1).amax(1)
    # After a fault the next host read raises. Until then nothing of such a step may reach a streamer or a criterion:
    # the comparison leaves its commits out.
    canvas.commit(columns, tokens, confidence, commit > run.fault[:, None], run.steps)
    if output.settled is not None:
        canvas.hold(columns.amax(1), ~output.settled.view(batch, -1).all(1), ran)
    if run.vocabulary is not None or output.provisional is not None:
        refill(run, columns, output.provisional, live)
    canvas.forwards = canvas.forwards + run.backbone.passes(ran, plan.lo, blocks.start)
    state.step = state.step + live
    run.cache_state.advance(plan, blocks)
    run.schedule.advance(canvas, ran)
    return scores


def _threshold(run: Run, slots: int) -> torch.Tensor | None:
    """The threshold `(R,)` that smoothing puts in place of the decoder's."""
    if run.soft is None:
        return None
    floor = run.decoder.threshold  # type: ignore[attr-defined]
    return run.soft.settings.threshold(run.steps, floor).repeat_interleave(slots)
