"""From a prepared call to its output."""

import dataclasses
import functools
import logging
import warnings
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from .backbone import Backbone
from .caches import POLICIES, DiffusionCache
from .caches.base import CacheState
from .canvas import Canvas
from .checks import check_request
from .config import DiffusionGenerationConfig
from .constraints import WARPERS, Constraints
from .decoders import DECODERS, Decoder
from .denoise import denoise
from .drafts import Drafts
from .families import Family
from .guidance import Guidance
from .lookahead import Lookahead
from .options import is_sampling
from .output import DiffusionGenerateOutput, assemble
from .run import Run
from .sampling import Sampler
from .schedules import SCHEDULES, Schedule
from .smoothing import Smoothing, SoftEmbeddings
from .stopping import Stopper
from .streamers import Emitter, StopStrings

logger = logging.getLogger("dllm_generate")
# Columns times new tokens from which a run without a cache spends most of its time on what a cache would keep.
LONG_RUN = 1 << 18


@dataclasses.dataclass
class GuidanceRequest:
    """Guidance as the user gave it."""

    scale: float
    negative_ids: torch.Tensor | None = None
    negative_mask: torch.Tensor | None = None


@dataclasses.dataclass
class Request:
    """A call of generate after transformers' preparation.

    Attributes:
        input_ids: `(B, P)`, already repeated for `num_return_sequences`.
        attention_mask: `(B, P)` or None.
        processors, criteria: transformers' prepared lists.
    """

    model: Any
    family: Family
    config: DiffusionGenerationConfig
    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    guidance: GuidanceRequest | None = None
    streamer: Any = None
    tokenizer: Any = None

    @property
    def new_tokens(self) -> int:
        """Columns to append."""
        return 0 if self.config.infill else self.config.max_length - self.input_ids.shape[1]

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model has."""
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Those that the model can write: defaults of a larger vocabulary are left out."""
        ids = self.config.eos_token_id
        given = () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (ids,)
        return tuple(i for i in given if 0 <= i < self.vocabulary)

    @property
    def pad_token_id(self) -> int:
        """Fills what belongs to no text."""
        pad = self.config.pad_token_id
        if pad is not None and 0 <= pad < self.vocabulary:
            return pad
        return self.eos_token_ids[0] if self.eos_token_ids else 0


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
    for part in (schedule, policy, decoder):
        part.validate(family, config)
    canvas, guidance = _canvases(request)
    canvas.revocable = decoder.revocable
    if not policy.uses_cache and canvas.width * request.new_tokens >= LONG_RUN:
        _hint_at_caches()
    halves = 1 if guidance is None else 2
    static = config.cache_implementation == "static"
    sampler = _sampler(request, decoder)
    return Run(
        backbone=Backbone(request.model),
        schedule=schedule,
        policy=policy,
        decoder=decoder,
        canvas=canvas,
        state=decoder.start(schedule.active(canvas), sampler),
        cache_state=CacheState.begin(canvas),
        constraints=Constraints.build(
            request.processors,
            canvas,
            mask_token_id=family.mask_token_id,  # type: ignore[arg-type]
            pad_token_id=request.pad_token_id if config.infill else None,
        ),
        invalid=torch.zeros_like(canvas.finished),
        logits_shift=family.logits_shift,
        cache=DiffusionCache(halves * canvas.row.numel(), canvas.width, static) if policy.uses_cache else None,
        guidance=guidance,
        tied=torch.zeros((), dtype=torch.bool, device=canvas.row.device) if decoder.filtered_confidence else None,
        soft=_soft_embeddings(request, decoder, canvas),
        drafts=_drafts(request, decoder, schedule, canvas),
        unroll_steps=config.unroll_steps or 1,
        seed=_seed() if sampler.warpers is not None or decoder.needs_noise else None,
    )


@functools.cache
def _hint_at_caches() -> None:
    logger.warning("A long canvas is recomputed in every step: `cache_policy` 'prefix' or 'dual' saves most of it.")


def _canvases(request: Request) -> tuple[Canvas, Guidance | None]:
    """The canvas, and the guidance with an unconditional prompt laid out in the same columns."""
    ids, mask, asked = request.input_ids, request.attention_mask, request.guidance
    mask = torch.ones_like(ids) if mask is None else mask
    if asked is None:
        return _canvas(request, ids, mask), None
    mask_id: int = request.family.mask_token_id  # type: ignore[assignment]
    if asked.negative_ids is None:
        canvas = _canvas(request, ids, mask)
        return canvas, Guidance.build(asked.scale, canvas, mask_id, None)
    if request.config.infill:
        raise ValueError(
            "`negative_prompt_ids` is given, but must be None with `infill`: the text around is the prompt."
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


def _canvas(request: Request, ids: torch.Tensor, mask: torch.Tensor) -> Canvas:
    return Canvas.build(
        ids,
        mask,
        new_tokens=request.new_tokens,
        mask_token_id=request.family.mask_token_id,  # type: ignore[arg-type]
        fill_token_id=request.pad_token_id,
        eos_token_ids=request.eos_token_ids,
        infill=bool(request.config.infill),
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
