"""LLaDA-8B (Base, Instruct, 1.5): Llama layers that attend in both directions and predict their own position.

Large Language Diffusion Models, arXiv 2502.09992; LLaDA 1.5, arXiv 2505.19223.
"""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig
from transformers.core_model_loading import WeightConverter, WeightRenaming
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaModel

from dllm_generate.families.adapters import PublishedAdapters
from dllm_generate.families.base import Family
from dllm_generate.families.native import assemble, register_native
from dllm_generate.families.presets import default_presets
from dllm_generate.families.published import (
    TrainedPadding,
    drop_ids_outside_vocabulary,
    refuse_others,
    take_published_names,
    take_sampling_values,
    with_published_rope,
)
from dllm_generate.mixin import DiffusionGenerationMixin

# What the published config format can express and Llama layers are. Anything else would load as another model.
_ARCHITECTURE = {
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "bias_for_layer_norm": False,
    "rope": True,
    "alibi": False,
    "scale_logits": False,
    "embedding_dropout": 0.0,
    "residual_dropout": 0.0,
}
# The same for fields of LlamaConfig; the published format has no words for them.
_LLAMA_ONLY = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "pretraining_tp": 1}
_MOE = "LLaDAMoEModelLM"
_EOS, _MASK, _EOT = 126081, 126336, 126348


@strict
class LLaDAConfig(LlamaConfig):
    """Configuration of a dense LLaDA model (arXiv 2502.09992). The defaults are LLaDA-8B.

    Reads the published names (`d_model`, `n_heads`, `n_kv_heads`, `n_layers`, `mlp_hidden_size`, `embedding_size`,
    `max_sequence_length`, `weight_tying`, `rope_theta`, ...) and writes them back; in code the names of `LlamaConfig`
    and the published ones mean the same attribute. `vocab_size` is the number of rows of the embedding, which a
    published config calls `embedding_size` and may be larger than its `vocab_size`.

    Args:
        mask_token_id: id of the mask token; None if the caller of `generate` is to give it.
        tokenizer_vocab_size: the published `vocab_size`, if it differs from `embedding_size`.
        is_causal: False: every position attends to every other.

    Attributes:
        sampling_defaults (`dict`): sampling values found in the model config. They belong in the generation config,
            are kept out of the saved config, and cause one warning.

    Raises:
        ValueError: for a config of another architecture (LLaDA-MoE, ALiBi, biases, other norms ...).
    """

    model_type = "llada"
    default_theta = 500_000.0
    attribute_map: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "n_layers": "num_hidden_layers",
        "mlp_hidden_size": "intermediate_size",
        "embedding_size": "vocab_size",
        "max_sequence_length": "max_position_embeddings",
        "weight_tying": "tie_word_embeddings",
        "init_std": "initializer_range",
    }

    vocab_size: int = 126464
    intermediate_size: int = 12288
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    use_cache: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = _EOS
    pad_token_id: int | None = _EOS
    mask_token_id: int | None = _MASK
    tokenizer_vocab_size: int | None = None
    is_causal: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_architecture(kwargs)
        self.sampling_defaults = take_sampling_values(kwargs)
        if (kwargs.get("embedding_size") or 0) > self.vocab_size:
            self.tokenizer_vocab_size = self.vocab_size
        if kwargs.get("multi_query_attention"):
            kwargs["n_kv_heads"] = 1
        if kwargs.get("d_model") and kwargs.get("mlp_ratio") and not kwargs.get("mlp_hidden_size"):
            kwargs["mlp_hidden_size"] = int(kwargs["mlp_ratio"] * kwargs["d_model"])
        # Before super(), which derives head_dim and the number of kv heads, and would do so from the defaults.
        take_published_names(self, kwargs)
        # A small model that does not name its ids has none.
        drop_ids_outside_vocabulary(self, eos_token_id=_EOS, pad_token_id=_EOS, mask_token_id=_MASK)
        super().__post_init__(**kwargs)
        if self.head_dim != self.hidden_size // self.num_attention_heads:
            raise ValueError(f"`head_dim`={self.head_dim} is not supported, only `d_model` / `n_heads` is.")

    def _check_architecture(self, kwargs: dict[str, Any]) -> None:
        if _MOE in (self.architectures or ()) or "num_experts" in kwargs:
            raise ValueError("This is a config of LLaDA-MoE, which shares `model_type` with LLaDA: use LLaDAMoEConfig.")
        given = {name: getattr(self, name) for name in _LLAMA_ONLY} | kwargs
        refuse_others("LLaDA", given, {**_ARCHITECTURE, **_LLAMA_ONLY})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As `LlamaConfig.from_dict`, but LLaDA-MoE, which was published under this `model_type`, gets its own class.

        Returns:
            A `LLaDAConfig`, or a `LLaDAMoEConfig`.
        """
        if _MOE in (config_dict.get("architectures") or ()):
            from dllm_generate.families.lladamoe import LLaDAMoEConfig

            return LLaDAMoEConfig.from_dict(config_dict, **kwargs)
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As `LlamaConfig.to_dict`, without `sampling_defaults`."""
        values = super().to_dict()
        values.pop("sampling_defaults", None)
        return values

    def to_diff_dict(self) -> dict[str, Any]:
        """The content of config.json, in the published names.

        Returns:
            Published names and values, so that other loaders of LLaDA checkpoints can read what we save.
        """
        saved = super().to_diff_dict()
        for name in (*_LLAMA_ONLY, "head_dim"):
            saved.pop(name, None)
        for published, name in self.attribute_map.items():
            saved[published] = saved.pop(name, getattr(self, name))
        saved["vocab_size"] = saved.pop("tokenizer_vocab_size", None) or self.vocab_size
        if self.architectures == ["LLaDAForMaskedDiffusion"]:
            saved["architectures"] = ["LLaDAModelLM"]
        return {**_ARCHITECTURE, **with_published_rope(saved, self.rope_parameters or {}, "rope_theta")}


class LLaDAModel(TrainedPadding, LlamaModel):
    """The body of LLaDA, without output head: `LlamaModel` with bidirectional attention."""

    config: LLaDAConfig


class LLaDAForMaskedDiffusion(PublishedAdapters, DiffusionGenerationMixin, LlamaForCausalLM):
    """LLaDA with its output head; `generate` denoises.

    `forward` is that of `LlamaForCausalLM` (attention masks 2-D or 4-D, `position_ids`, `cache`, `logits_to_keep`), but
    every position sees every other and its logits are those of its own token. Loads the published checkpoints and
    writes their tensor names back (`save_original_format=False` writes Llama's).

    Example:
        >>> from dllm_generate import LLaDAForMaskedDiffusion
        >>> model = LLaDAForMaskedDiffusion.from_pretrained("GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16")
    """

    config: LLaDAConfig

    def __init__(self, config: LLaDAConfig) -> None:
        if not isinstance(config, LLaDAConfig):
            raise ValueError(
                f"{type(self).__name__} needs a LLaDAConfig, got {type(config).__name__}: load the checkpoint with "
                "AutoModelForCausalLM."
            )
        assemble(self, LlamaForCausalLM, LLaDAModel, config)


# The look-behinds keep names that both layouts share (up_proj, q_proj ...) from being renamed twice, and `norm` from
# matching inside `input_layernorm` on the way back.
_RENAMINGS: list[WeightConverter | WeightRenaming] = [
    WeightRenaming(r"^model\.transformer\.ff_out\.", "lm_head."),
    WeightRenaming(r"\.attn_norm\.", ".input_layernorm."),
    WeightRenaming(r"\.ff_norm\.", ".post_attention_layernorm."),
    WeightRenaming(r"(?<!self_attn)\.q_proj\.", ".self_attn.q_proj."),
    WeightRenaming(r"(?<!self_attn)\.k_proj\.", ".self_attn.k_proj."),
    WeightRenaming(r"(?<!self_attn)\.v_proj\.", ".self_attn.v_proj."),
    WeightRenaming(r"\.attn_out\.", ".self_attn.o_proj."),
    WeightRenaming(r"\.ff_proj\.", ".mlp.gate_proj."),
    WeightRenaming(r"(?<!mlp)\.up_proj\.", ".mlp.up_proj."),
    WeightRenaming(r"\.ff_out\.", ".mlp.down_proj."),
    WeightRenaming(r"transformer\.blocks\.", "layers."),
    WeightRenaming(r"transformer\.wte\.", "embed_tokens."),
    WeightRenaming(r"transformer\.ln_f\.", r"(?<!\w)norm\."),
]

LLADA = Family(
    name="llada",
    special_token_ids={"eos": _EOS, "eot": _EOT},
    presets=default_presets("bidirectional", block_length=32),
)

register_native(LLADA, LLaDAConfig, LLaDAForMaskedDiffusion, "LLaDAModelLM", _RENAMINGS)
