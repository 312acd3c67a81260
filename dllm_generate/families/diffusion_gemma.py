"""DiffusionGemma: a causal encoder of finished text, a decoder of one block, uniform noise, self-conditioning.

The model is transformers' own `DiffusionGemmaForBlockDiffusion`; here is how it is run in our loop.
"""

import copy
from typing import Any

import torch
from transformers.models.diffusion_gemma.configuration_diffusion_gemma import DiffusionGemmaConfig

from dllm_generate.attention import attention_mask, check_backend
from dllm_generate.encoding import EncodingBackbone
from dllm_generate.families.base import Family, register_family, register_translation
from dllm_generate.registry import require

_PUBLISHED = {
    "schedule": "block_diffusion",
    "block_length": 256,
    "decoder": "renoise",
    "steps_per_block": 48,
    "cache_policy": "block",
}
# Names of the published sampler that are ours, too.
_SAME = ("t_min", "t_max", "stability_threshold", "confidence_threshold")


class DiffusionGemmaBackbone(EncodingBackbone):
    """Runs the two bodies of a DiffusionGemma model, and feeds the decoder what it predicted in the step before.

    Attributes:
        previous (`Tensor (B, k, V)`): scores of the last step of each row, at its temperature; None before the first.
        start (`LongTensor (B,)`): first column of the block that they belong to. In another block, they do not count.

    Raises:
        ValueError: for a model without head, or an attention backend that takes no 4-D mask.
    """

    def __init__(self, model: Any):
        if not hasattr(model, "lm_head"):
            raise ValueError(f"{type(model).__name__} has no head: load a DiffusionGemmaForBlockDiffusion.")
        self.encoder, self.decoder, self.head = model.model.encoder, model.model.decoder, model.lm_head
        self.cap, text = model.final_logit_softcapping, model.config.text_config
        self.reach, self.implementation, self.dtype = text.sliding_window, text._attn_implementation, model.dtype
        self.layer_types = set(text.layer_types)
        check_backend(self.implementation)
        self.previous: torch.Tensor | None = None
        self.start = torch.zeros(0)

    def validate(self, family, config):
        super().validate(family, config)
        for option in ("smoothing", "lookahead"):
            value, why = getattr(config, option), "which is fed what it predicted itself"
            require(not value, option, value, f"unset for the family {family.name!r}, {why}")

    def encode(self, input_ids, position_ids, visible, key_positions, cache):
        near = key_positions[:, None] > position_ids[..., None] - self.reach
        masks = self._masks(visible, visible & near)
        self.encoder(input_ids=input_ids, attention_mask=masks, position_ids=position_ids, cache=cache)

    def denoise(self, input_ids, position_ids, visible, key_positions, finished, start, rows):
        # The whole block sees the same part of the text.
        near = key_positions > position_ids[:, :1] - self.reach
        block = torch.ones_like(input_ids, dtype=torch.bool)
        masks = self._masks(*(torch.cat([keys, block], 1) for keys in (visible, visible & near)))
        fed = {}
        if self.previous is not None:
            previous, begun = (x if rows is None else x[rows] for x in (self.previous, self.start))
            fed = {"self_conditioning_logits": previous, "self_conditioning_mask": begun == start}
        return self.decoder(
            decoder_input_ids=input_ids,
            cache=finished,
            decoder_attention_mask=masks,
            decoder_position_ids=position_ids,
            **fed,
        ).last_hidden_state.to(input_ids.device)

    def scores(self, hidden):
        return (torch.tanh(self.head(hidden).float() / self.cap) * self.cap).to(hidden.device)

    def absorb(self, scores, temperature, blocks):
        if temperature is not None:
            scores = scores / temperature[:, None, None]
        scores = scores.to(self.decoder.embed_tokens.weight.dtype)
        if self.previous is None:
            self.previous, self.start = torch.zeros_like(scores), torch.zeros_like(blocks.start)
        self.previous = torch.where(blocks.ran[:, None, None], scores, self.previous)
        self.start = torch.where(blocks.ran, blocks.start, self.start)

    def select(self, rows):
        other = copy.copy(self)
        if self.previous is not None:
            other.previous, other.start = self.previous[rows], self.start[rows]
        return other

    def _masks(self, everywhere: torch.Tensor, nearby: torch.Tensor) -> dict[str, torch.Tensor]:
        """One mask for each kind of layer."""
        kinds = {"full_attention": everywhere, "sliding_attention": nearby}
        make = lambda visible: attention_mask(visible, implementation=self.implementation, dtype=self.dtype)
        return {name: make(visible) for name, visible in kinds.items() if name in self.layer_types}


def _options(config: Any) -> dict[str, Any]:
    """What a `DiffusionGemmaGenerationConfig` says."""
    values = {name: getattr(config, name) for name in _SAME if getattr(config, name) is not None}
    if config.sampler_config is not None:
        values["entropy_bound"] = config.sampler_config.entropy_bound
    # Its default asks for an output object, which is not to be told from a wish.
    options: dict[str, Any] = {"return_dict_in_generate": None}
    if values or config.max_denoising_steps is not None:
        options |= {"decoder": "renoise", "decoder_config": values or None}
        options["steps_per_block"] = config.max_denoising_steps
    return options


DIFFUSION_GEMMA = Family(
    name="diffusion_gemma",
    attention="block_causal",
    block_length=256,
    block_length_field="canvas_length",
    prompt_is_one_block=True,
    noise="uniform",
    backbone=DiffusionGemmaBackbone,
    # Nothing else has been measured.
    presets={name: dict(_PUBLISHED) for name in ("published", "quality", "balanced", "speed")},
)

register_family(DIFFUSION_GEMMA, DiffusionGemmaConfig, architectures=("DiffusionGemmaForBlockDiffusion",))
register_translation("DiffusionGemmaGenerationConfig", _options)
