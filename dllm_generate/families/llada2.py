"""LLaDA2.0 and 2.1 (mini, flash): GLM-4-MoE layers with block-causal attention that predict their own position.

LLaDA2.0: Scaling Up Diffusion Language Models to 100B, arXiv 2512.15745; LLaDA2.1: Speeding Up Text Diffusion
via Token Editing, arXiv 2602.08676. The two versions share their layers and config; they differ in how they decode,
which the generation config says: `preset="published-2.1"` is the sampler of LLaDA2.1.
"""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import Glm4MoeConfig
from transformers.core_model_loading import WeightConverter, WeightRenaming
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeForCausalLM, Glm4MoeModel

from dllm_generate.families.base import Family
from dllm_generate.families.experts import FUSED, FusedExperts
from dllm_generate.families.fused import SplitRows
from dllm_generate.families.masking import BlockCausalBody
from dllm_generate.families.native import assemble, register_native
from dllm_generate.families.presets import default_presets
from dllm_generate.families.published import TrainedPadding, take_published_names
from dllm_generate.families.qwen import PublishedQwenConfig
from dllm_generate.mixin import DiffusionGenerationMixin

_EOS, _MASK = 156892, 156895


@strict
class LLaDA2MoeConfig(PublishedQwenConfig, Glm4MoeConfig):
    """Configuration of LLaDA2.0 and LLaDA2.1 (arXiv 2512.15745). The defaults are LLaDA2.0-mini.

    Reads the published names (`num_experts`, `num_shared_experts`, `rope_theta`, `partial_rotary_factor`, ...) and
    writes them back. In code they and the names of `Glm4MoeConfig` mean the same attribute.

    Args:
        head_dim: size of an attention head; None for `hidden_size / num_attention_heads`.
        block_length: number of positions of a block.
        unused_sliding_window: the `sliding_window` of a published file, which is written back. It is not used, and
            caches of transformers would use it under its own name.
        mask_token_id: id of the mask token; None if the caller of `generate` is to give it.

    Raises:
        ValueError: for a config of another architecture (biases, dropout, another router, no shared expert ...).
    """

    model_type = "llada2_moe"
    default_theta = 600_000.0
    published_name = "LLaDA2"
    published_classes: ClassVar[dict[str, str]] = {"LLaDA2MoeForMaskedDiffusion": "LLaDA2MoeModelLM"}
    architecture: ClassVar[dict[str, Any]] = {
        "use_sliding_window": False,
        "attention_bias": False,
        "use_qkv_bias": False,
        "use_bias": False,
        "use_rmsnorm": True,
        "using_split_qkv_in_self_attention": False,
        "embedding_dropout": 0.0,
        "output_dropout": 0.0,
        "norm_head": False,
        "norm_softmax": False,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    }
    attribute_map: ClassVar[dict[str, str]] = {
        **Glm4MoeConfig.attribute_map,
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
    }

    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    moe_intermediate_size: int = 512
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int | None = None
    n_routed_experts: int = 256
    n_group: int = 8
    topk_group: int = 4
    routed_scaling_factor: float = 2.5
    use_qk_norm: bool = True
    num_mtp_layers: int = 0
    max_position_embeddings: int = 16384
    rms_norm_eps: float = 1e-6
    use_cache: bool = False
    eos_token_id: int | list[int] | None = _EOS
    pad_token_id: int | None = _EOS
    mask_token_id: int | None = _MASK
    block_length: int = 32
    unused_sliding_window: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        take_published_names(self, kwargs)
        if not self.n_shared_experts:
            raise ValueError(f"LLaDA2 with `num_shared_experts`={self.n_shared_experts!r} is not supported.")
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.unused_sliding_window = kwargs.pop("sliding_window", None) or self.unused_sliding_window
        super().__post_init__(**kwargs)

    def to_diff_dict(self) -> dict[str, Any]:
        """The content of config.json, in the published names.

        Returns:
            Published names and values, so that other loaders of LLaDA2 checkpoints can read what we save.
        """
        saved = {**self.architecture, **super().to_diff_dict()}
        for name in ("attention_bias", "num_mtp_layers", "num_nextn_predict_layers"):
            saved.pop(name, None)
        for published in ("num_experts", "num_shared_experts"):
            saved[published] = saved.pop(self.attribute_map[published], getattr(self, published))
        saved["sliding_window"] = saved.pop("unused_sliding_window")
        saved["partial_rotary_factor"] = (self.rope_parameters or {}).get("partial_rotary_factor")
        return saved


class LLaDA2MoeModel(BlockCausalBody, FusedExperts, TrainedPadding, Glm4MoeModel):
    """The body of LLaDA2, without output head: `Glm4MoeModel` with block-causal attention."""

    config: LLaDA2MoeConfig
    # The layers of GLM that predict further tokens.
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = []


class LLaDA2MoeForMaskedDiffusion(DiffusionGenerationMixin, FusedExperts, Glm4MoeForCausalLM):
    """LLaDA2.0 or 2.1 with its output head; `generate` denoises.

    `forward` is that of `Glm4MoeForCausalLM` (attention masks 2-D or 4-D, `position_ids`, `cache`, `logits_to_keep`),
    but a position sees its whole block and all earlier ones, and its logits are those of its own token. Loads the
    published checkpoints and writes their tensor names back (`save_original_format=False` writes fused experts and
    separate projections).

    Example:
        >>> from dllm_generate.families.llada2 import LLaDA2MoeForMaskedDiffusion
        >>> model = LLaDA2MoeForMaskedDiffusion.from_pretrained("inclusionAI/LLaDA2.0-mini", dtype="bfloat16")
    """

    config: LLaDA2MoeConfig
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = []

    def __init__(self, config: LLaDA2MoeConfig) -> None:
        assemble(self, Glm4MoeForCausalLM, LLaDA2MoeModel, config)


_CONVERSION: list[WeightConverter | WeightRenaming] = [
    *FUSED,
    WeightRenaming(r"word_embeddings\.", "embed_tokens."),
    WeightRenaming(r"\.attention\.", ".self_attn."),
    # One matrix with the rows of all query heads, all key heads, all value heads.
    WeightConverter("query_key_value", ["q_proj", "k_proj", "v_proj"], operations=[SplitRows()]),
    WeightRenaming(r"\.self_attn\.dense\.", ".self_attn.o_proj."),
    WeightRenaming(r"\.self_attn\.query_layernorm\.", ".self_attn.q_norm."),
    WeightRenaming(r"\.self_attn\.key_layernorm\.", ".self_attn.k_norm."),
    WeightRenaming(r"\.mlp\.gate\.expert_bias", ".mlp.gate.e_score_correction_bias"),
]

_DEFAULTS = default_presets("block_causal", block_length=32)
# Of LLaDA2.1, whose config.json does not tell it from LLaDA2.0: its generation_config.json has to name this preset.
_EDITING = {
    **_DEFAULTS["published"],
    "decoder": "editing",
    "threshold": 0.95,
    "decoder_config": {"editing_threshold": 0.9, "max_post_steps": 16, "at_least": 1},
}

LLADA2 = Family(
    name="llada2_moe",
    attention="block_causal",
    block_length=32,
    prompt_is_one_block=False,
    special_token_ids={"eos": _EOS},
    presets={
        **_DEFAULTS,
        "published": {**_DEFAULTS["published"], "decoder": "dynamic", "threshold": 0.95},
        "published-2.1": _EDITING,
    },
)

register_native(LLADA2, LLaDA2MoeConfig, LLaDA2MoeForMaskedDiffusion, "LLaDA2MoeModelLM", _CONVERSION)
