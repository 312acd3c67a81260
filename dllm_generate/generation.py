"""From a prepared call to its output."""

import functools
import logging
import warnings
from typing import Any

import torch
from transformers import LogitsProcessorList

from . import noising
from .backbone import Backbone
from .caches import POLICIES, DiffusionCache
from .caches.base import CacheState
from .canvas import Canvas
from .checks import check_request
from .compiling import compiled_body
from .constraints import WARPERS, Constraints
from .decoders import DECODERS, Decoder
from .denoise import denoise
from .drafts import Drafts
from .guidance import Guidance
from .layout import Layout
from .lookahead import Lookahead
from .options import is_sampling
from .output import DiffusionGenerateOutput, assemble
from .request import Request
from .run import Run
from .sampling import Sampler
from .schedules import SCHEDULES, Schedule
from .smoothing import Smoothing, SoftEmbeddings
from .stopping import Stopper
from .streamers import Emitter, StopStrings

logger = logging.getLogger("dllm_generate")
# Columns times new tokens from which a run without a cache spends most of its time on what a cache would keep.
LONG_RUN = 1 << 18


def run_request(request: Request) -> torch.Tensor | DiffusionGenerateOutput:
    """Denoises, and returns ids `(B, P + G)` or a [`DiffusionGenerateOutput`], as the config asks."""
    config = request.config
    run = build_run(request)
    stopper = Stopper.build(request.criteria)
    observers: list[Any] = [stopper] if stopper.is_needed else []
    if request.streamer is not None:
        observers.append(Emitter(request.streamer, stopper.endings, _stop_strings(request)))
    canvas = denoise(run, observers)
    if run.tied is not None and bool(run.tied):
        warnings.warn(
            "More than half of the open positions of a step had the same confidence; they were committed from left to "
            "right. `filtered_confidence` does that at low temperatures.",
            UserWarning,
            stacklevel=2,
        )
    output = assemble(
        canvas,
        stopper.endings,
        prompt_length=0 if config.infill else request.input_ids.shape[1],
        pad_token_id=request.pad_token_id,
    )
    if config.output_scores:
        output.scores = output.confidence
    return output if config.return_dict_in_generate else output.sequences


def build_run(request: Request) -> Run:
    """Makes the state of a run, and refuses what cannot work. No forward yet."""
    check_request(request)
    config, family = request.config, request.family
    config.max_new_tokens = request.new_tokens or None
    schedule, policy, decoder = (config.build(kind) for kind in (SCHEDULES, POLICIES, DECODERS))
    if config.use_cache is False:
        policy = POLICIES.build("none")
    config.block_length = getattr(schedule, "block_length", config.block_length)
    backbone = (family.backbone or Backbone)(request.model)
    for part in (schedule, policy, decoder, backbone):
        part.validate(family, config)
    backbone.compiled = compiled_body(backbone, policy, config)
    is_noisy = family.noise == "uniform"
    if is_noisy:
        noising.validate(family, decoder, config)
    canvas, guidance = _canvases(request, schedule.layout(family))
    canvas.revocable = decoder.revocable
    if not policy.uses_cache and canvas.width * request.new_tokens >= LONG_RUN:
        _hint_at_caches()
    halves = 1 if guidance is None else 2
    static = config.cache_implementation == "static"
    sampler, blocks = _sampler(request, decoder), schedule.active(canvas)
    # Between the positions to fill there may be whole blocks of fixed text.
    if not config.infill:
        decoder.validate_blocks(blocks.count)
    run = Run(
        backbone=backbone,
        schedule=schedule,
        policy=policy,
        decoder=decoder,
        canvas=canvas,
        state=decoder.start(blocks, sampler),
        cache_state=CacheState.begin(canvas),
        constraints=Constraints.build(
            request.processors,
            canvas,
            mask_token_id=family.mask_token_id,  # type: ignore[arg-type]
            pad_token_id=request.pad_token_id if config.infill else None,
        ),
        fault=torch.zeros_like(canvas.row),
        logits_shift=family.logits_shift,
        cache=DiffusionCache(halves * canvas.row.numel(), canvas.width, static) if policy.uses_cache else None,
        guidance=guidance,
        tied=torch.zeros((), dtype=torch.bool, device=canvas.row.device) if decoder.filtered_confidence else None,
        soft=_soft_embeddings(request, decoder, canvas),
        drafts=_drafts(request, decoder, schedule, canvas),
        unroll_steps=config.unroll_steps or 1,
        seed=_seed() if sampler.warpers is not None or decoder.needs_noise or is_noisy else None,
        vocabulary=request.vocabulary if is_noisy else None,
    )
    if is_noisy:
        noising.begin(run)
    return run


@functools.cache
def _hint_at_caches() -> None:
    logger.warning(
        "A long canvas is recomputed in every step: `cache_policy` 'prefix' or 'dual', or 'block' with block-causal "
        "attention, saves most of it."
    )


def _canvases(request: Request, layout: Layout | None) -> tuple[Canvas, Guidance | None]:
    """The canvas, and the guidance with an unconditional prompt laid out in the same columns."""
    ids, mask, asked = request.input_ids, request.attention_mask, request.guidance
    mask = torch.ones_like(ids) if mask is None else mask
    if asked is None:
        return _canvas(request, ids, mask, layout), None
    mask_id: int = request.family.mask_token_id  # type: ignore[assignment]
    if asked.negative_ids is None:
        canvas = _canvas(request, ids, mask, layout)
        return canvas, Guidance.build(asked.scale, canvas, mask_id, None)
    if request.config.infill:
        raise ValueError(
            "`negative_prompt_ids` is given, but must be None with `infill`: the text around is the prompt."
        )
    if layout is not None:
        raise ValueError(
            "`negative_prompt_ids` is given, but must be None for block-causal attention: the blocks of another prompt "
            "do not lie beside those of this one."
        )
    negative = asked.negative_ids
    negative_mask = torch.ones_like(negative) if asked.negative_mask is None else asked.negative_mask
    repeats = ids.shape[0] // negative.shape[0]
    negative, negative_mask = (x.repeat_interleave(repeats, 0) for x in (negative, negative_mask))
    width = max(ids.shape[1], negative.shape[1])
    canvas, other = (_canvas(request, *_widened(*p, width)) for p in ((ids, mask), (negative, negative_mask)))
    canvas.first += width - ids.shape[1]
    return canvas, Guidance.build(asked.scale, canvas, mask_id, other)


def _widened(ids: torch.Tensor, mask: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    padding = (width - ids.shape[1], 0)
    return torch.nn.functional.pad(ids, padding), torch.nn.functional.pad(mask, padding)


def _canvas(request: Request, ids: torch.Tensor, mask: torch.Tensor, layout: Layout | None = None) -> Canvas:
    return Canvas.build(
        ids,
        mask,
        new_tokens=request.new_tokens,
        mask_token_id=request.family.mask_token_id,  # type: ignore[arg-type]
        fill_token_id=request.pad_token_id,
        eos_token_ids=request.eos_token_ids,
        infill=bool(request.config.infill),
        layout=layout,
    )


def _sampler(request: Request, decoder: Decoder) -> Sampler:
    warpers = LogitsProcessorList(p for p in request.processors if isinstance(p, WARPERS))
    sampling = is_sampling(request.config)
    if decoder.filtered_confidence and not sampling:
        warnings.warn("`filtered_confidence` has no effect without sampling.", UserWarning, stacklevel=2)
    return Sampler(warpers if sampling else None, decoder.filtered_confidence, _postponed(request, decoder))


def _soft_embeddings(request: Request, decoder: Decoder, canvas: Canvas) -> SoftEmbeddings | None:
    settings = Smoothing.of(request.config.smoothing)
    if settings is None:
        return None
    settings.validate(decoder, request.model, guided=request.guidance is not None)
    return SoftEmbeddings.begin(settings, request.model.get_input_embeddings(), canvas.input_ids)


def _drafts(request: Request, decoder: Decoder, schedule: Schedule, canvas: Canvas) -> Drafts | None:
    settings = Lookahead.of(request.config.lookahead)
    if settings is None:
        return None
    settings.validate(decoder, schedule.active(canvas), Smoothing.of(request.config.smoothing))
    return Drafts.begin(settings, canvas.row)


def _postponed(request: Request, decoder: Decoder) -> tuple[int, ...]:
    ids = set(decoder.postpone_tokens)
    if decoder.postpone_eos:
        special = request.family.special_token_ids
        ids |= set(request.eos_token_ids) | ({special["eot"]} if "eot" in special else set())
        if not ids:
            raise ValueError("`postpone_eos` is True, but the call has no `eos_token_id`.")
    if max(ids, default=0) >= request.vocabulary:
        raise ValueError(
            f"`postpone_tokens` is {decoder.postpone_tokens}, but the model has {request.vocabulary} tokens."
        )
    return tuple(sorted(ids))


def _seed() -> int:
    """Taken from torch's generator, so that `torch.manual_seed` and `transformers.set_seed` govern it."""
    return int(torch.randint(1 << 62, ()))


def _stop_strings(request: Request) -> Any:
    strings = request.config.stop_strings
    if not strings:
        return None
    strings = [strings] if isinstance(strings, str) else list(strings)
    return lambda: StopStrings(request.tokenizer, strings)
