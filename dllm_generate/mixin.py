"""The plug into transformers: the only file that touches private parts of its GenerationMixin."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from .config import DiffusionGenerationConfig
from .families import family_of
from .generation import run_request
from .inputs import check_arguments, check_inputs, with_mask_of_tokenizer
from .options import OWN_FIELDS, is_sampling, refuse_autoregressive, refuse_unknown
from .precedence import resolve
from .request import GuidanceRequest, Request
from .streamers import check_streamer


class DiffusionProcessors(LogitsProcessorList):
    """The prepared processors of a call, and its guidance, which `_sample` would not see otherwise."""

    guidance: GuidanceRequest | None = None


class DiffusionGenerationMixin(GenerationMixin):
    """Gives a model a `generate` that denoises instead of writing left to right.

    It goes through transformers' own preparation (config, masks, processors, criteria) and replaces the loop.
    """

    _supported_generation_modes = [GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH]
    generation_config_class = DiffusionGenerationConfig

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None,
        synced_gpus: bool | None = None,
        assistant_model: Any = None,
        streamer: Any = None,
        negative_prompt_ids: torch.Tensor | None = None,
        negative_prompt_attention_mask: torch.Tensor | None = None,
        custom_generate: str | Callable | None = None,
        **kwargs: Any,
    ):
        """Generates text by denoising.

        Args:
            inputs: prompt ids, `(B, P)` or `(P,)`; also as `input_ids`. Padded rows need an `attention_mask`.
            generation_config: a [`DiffusionGenerationConfig`], or transformers' base class. What it leaves unset comes
                from `model.generation_config`, then from the preset of the model's family.
            logits_processor: order-free processors, applied at every position.
            stopping_criteria: evaluated on the committed prefix of every row, token by token.
            streamer: transformers' text streamers for one row, [`RowStreamer`] for a batch.
            negative_prompt_ids, negative_prompt_attention_mask: unconditional prompt for `guidance_scale`; without it,
                the prompt is masked.
            custom_generate: as in transformers; replaces this method's loop.
            kwargs: any option of [`DiffusionGenerationConfig`], `attention_mask` `(B, P)`, and `tokenizer`.

        Returns:
            `LongTensor (B, P + G)`, or [`DiffusionGenerateOutput`] with `return_dict_in_generate=True`.

        Raises:
            ValueError: for what cannot be honoured, before the first forward; naming the option, the value and what is
                allowed.
        """
        # Imported here, since it builds on this class.
        from .attaching import diffusion_generate

        if custom_generate is diffusion_generate:
            custom_generate = None
        check_streamer(streamer, 1)
        try:
            if custom_generate is None:
                check_arguments(assistant_model, generation_config, kwargs)
                inputs, kwargs = check_inputs(self, inputs, generation_config, kwargs)
                # Here already: transformers hands the prompts to the streamer before it prepares the rest.
                check_streamer(streamer, inputs.shape[0])
                generation_config = generation_config and DiffusionGenerationConfig.upgrade(generation_config)
                kwargs = with_mask_of_tokenizer(self, generation_config, kwargs)
            return super().generate(
                inputs=inputs,
                generation_config=generation_config,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
                synced_gpus=synced_gpus,
                assistant_model=assistant_model,
                streamer=streamer,
                negative_prompt_ids=negative_prompt_ids,
                negative_prompt_attention_mask=negative_prompt_attention_mask,
                custom_generate=custom_generate,
                **kwargs,
            )
        finally:
            # Also on errors: a consumer of an iterator streamer waits for it in another thread.
            if streamer is not None and custom_generate is None:
                streamer.end()

    def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None:
        super().adjust_generation_fn(*args, **kwargs)  # type: ignore[misc]
        if self.generation_config is not None:
            self.generation_config = DiffusionGenerationConfig.upgrade(self.generation_config)
            # Published checkpoints keep sampling values in config.json, which transformers drops.
            sampling = getattr(self.config, "sampling_defaults", {})  # type: ignore[attr-defined]
            self.generation_config.update(**sampling, defaults_only=True)

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs: Any):
        explicit = {name for name in kwargs if kwargs[name] is not None}
        if generation_config is not None:
            if isinstance(generation_config, DiffusionGenerationConfig):
                refuse_unknown(generation_config.unknown_attributes)
            explicit |= {name for name in OWN_FIELDS if getattr(generation_config, name, None) is not None}
            # The base class would take own options of ours from kwargs for arguments of the model.
            generation_config = DiffusionGenerationConfig.upgrade(generation_config)
        else:
            generation_config = DiffusionGenerationConfig()
        self.generation_config = DiffusionGenerationConfig.upgrade(self.generation_config)
        # Set by call: the base class warns that config and arguments are given together, which is how we are used.
        generation_config = copy.deepcopy(generation_config)
        unused = generation_config.update(**kwargs)
        # Published model configs say `use_cache: false`, which is about plain forwards: only the caller's word counts.
        use_cache = generation_config.use_cache
        generation_config, model_kwargs = super()._prepare_generation_config(  # type: ignore[misc]
            generation_config, **unused
        )
        generation_config.use_cache = use_cache
        refuse_autoregressive(vars(generation_config))
        resolve(generation_config, explicit, family_of(self, generation_config))
        return generation_config, model_kwargs

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config, model_kwargs, *args: Any, **kwargs: Any
    ) -> None:
        if model_kwargs.get("cache") is not None:
            raise ValueError("`cache` is given, but diffusion decoding makes its own: choose `cache_policy` instead.")

    def _get_logits_processor(  # type: ignore[override]
        self,
        generation_config: GenerationConfig,
        input_ids_seq_length: int | None = None,
        encoder_input_ids: torch.Tensor | None = None,
        prefix_allowed_tokens_fn: Callable | None = None,
        logits_processor: LogitsProcessorList | None = None,
        device: Any = None,
        model_kwargs: dict[str, Any] | None = None,
        negative_prompt_ids: torch.Tensor | None = None,
        negative_prompt_attention_mask: torch.Tensor | None = None,
    ) -> DiffusionProcessors:
        # The stock list would run an unconditional forward of its own, and warpers that reject temperature 0.
        stock = copy.copy(generation_config)
        stock.guidance_scale = None
        stock.do_sample = is_sampling(generation_config)
        made = DiffusionProcessors(
            super()._get_logits_processor(
                generation_config=stock,
                input_ids_seq_length=input_ids_seq_length,
                encoder_input_ids=encoder_input_ids,
                prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
                logits_processor=logits_processor,
                device=device,
                model_kwargs=model_kwargs,
            )
        )
        made.guidance = GuidanceRequest.of(
            generation_config.guidance_scale, negative_prompt_ids, negative_prompt_attention_mask
        )
        return made

    def _sample(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: DiffusionGenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ):
        request = Request(
            model=self,
            family=family_of(self, generation_config),
            config=generation_config,
            input_ids=input_ids,
            attention_mask=model_kwargs.get("attention_mask"),
            processors=logits_processor,
            criteria=stopping_criteria,
            guidance=getattr(logits_processor, "guidance", None),
            streamer=streamer,
            tokenizer=model_kwargs.get("tokenizer"),
        )
        return run_request(request)

    def init_continuous_batching(self, *args: Any, **kwargs: Any):
        """Raises ValueError: continuous batching writes left to right."""
        raise ValueError("Continuous batching decodes left to right: use `generate` with a batch instead.")

    def generate_batch(self, *args: Any, **kwargs: Any):
        """Raises ValueError: continuous batching writes left to right."""
        return self.init_continuous_batching()


def is_prepared(config: Any) -> bool:
    """Whether transformers has prepared the call: then the config carries the special tokens as tensors."""
    return hasattr(config, "_pad_token_tensor")


def refuse_what_is_lost(*, generation_config: GenerationConfig, logits_processor: Any, **kwargs: Any) -> None:
    """Raises ValueError for what transformers drops or consumes on the way to a callable `custom_generate`.

    To be called by that callable itself: what was dropped is two frames up.
    """
    caller = inspect.currentframe().f_back.f_back.f_locals  # type: ignore[union-attr]
    for lost in ("streamer", "assistant_model", "negative_prompt_ids"):
        if caller.get(lost) is not None:
            if lost == "streamer":
                # It has the prompt already, and its consumer waits.
                caller[lost].end()
            raise ValueError(
                f"transformers drops `{lost}` on the way to a callable `custom_generate`: call "
                f"dllm_generate.diffusion_generate(model, ..., {lost}=...) or dllm_generate.attach(model) instead."
            )
    if any(isinstance(p, UnbatchedClassifierFreeGuidanceLogitsProcessor) for p in logits_processor):
        raise ValueError(
            f"`guidance_scale` is {generation_config.guidance_scale}, which transformers consumes on the way to a "
            "callable `custom_generate`: call dllm_generate.diffusion_generate(model, ...) instead."
        )
    if getattr(kwargs.get("cache"), "_is_user_defined", False):
        raise ValueError("`cache` is given, but diffusion decoding makes its own: choose `cache_policy` instead.")


def sample_prepared(
    model: Any, input_ids: Any, *, generation_config: GenerationConfig, attention_mask: Any = None, **kwargs: Any
):
    """The rest of `generate`, for a call that transformers has prepared for a model without the mixin."""
    config = DiffusionGenerationConfig.upgrade(generation_config)
    if getattr(model.config, "use_cache", None) is False:
        config.use_cache = None
    refuse_autoregressive(vars(config))
    resolve(config, set(), family_of(model, config))
    prepared = {name: kwargs[name] for name in ("logits_processor", "stopping_criteria")}
    return model._sample(input_ids, generation_config=config, attention_mask=attention_mask, **prepared)
