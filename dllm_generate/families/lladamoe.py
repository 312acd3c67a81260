"""LLaDA-MoE: Qwen3-MoE layers that attend in both directions and predict their own position.

LLaDA-MoE: A Sparse MoE Diffusion Language Model, arXiv 2509.24389.
"""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import Qwen3MoeConfig
from transformers.core_model_loading import WeightConverter, WeightRenaming
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeForCausalLM,
    Qwen3MoeMLP,
    Qwen3MoeModel,
    Qwen3MoeSparseMoeBlock,
)

from dllm_generate.families.base import Family
from dllm_generate.families.experts import FUSED, FusedExperts, assemble_with_router
from dllm_generate.families.native import register_native
from dllm_generate.families.presets import default_presets
from dllm_generate.families.published import TrainedPadding, take_published_names
from dllm_generate.families.qwen import PublishedQwenConfig
from dllm_generate.mixin import DiffusionGenerationMixin

_PUBLISHED = "LLaDAMoEModelLM"
_EOS, _MASK = 156892, 156895


@strict
class LLaDAMoEConfig(PublishedQwenConfig, Qwen3MoeConfig):
    """Configuration of LLaDA-MoE (arXiv 2509.24389). The defaults are LLaDA-MoE-7B-A1B.

    Reads the published names (`expert_intermediate_size`, `dense_intermediate_size`, `moe_layer_freq`, `rope_theta`,
    ...) and writes them back. In code they and the names of `Qwen3MoeConfig` mean the same attribute.

    Args:
        shared_expert_intermediate_size: size of the expert that every token visits, or None for no such expert.
        moe_layer_freq: for every layer, 1 if it has experts, 0 if it is dense; None if all have experts.
        norm_topk_prob: kept, and ignored as in the published code: the weights of the chosen experts are never
            normalised.
        mask_token_id: id of the mask token; None if the caller of `generate` is to give it.
        is_causal: False: every position attends to every other.
        published_model_type: the `model_type` of the config.json that this was read from, which is written again:
            `"lladamoe"`, or `"llada"`, which other checkpoints use for the dense model.

    Raises:
        ValueError: for a config of another architecture (another router, expert biases, no QK norm ...).
    """

    model_type = "lladamoe"
    default_theta = 50_000.0
    published_name = "LLaDA-MoE"
    published_classes: ClassVar[dict[str, str]] = {"LLaDAMoEForMaskedDiffusion": _PUBLISHED}
    architecture: ClassVar[dict[str, Any]] = {
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "qk_layernorm": True,
        "moe_router_score_function": "softmax",
        "moe_router_enable_expert_bias": False,
        "router_num_group": None,
        "router_topk_group": None,
        "routed_scaling_factor": 1,
        "partial_rotary_factor": 1,
        "clip_qkv": None,
    }
    attribute_map: ClassVar[dict[str, str]] = {
        "dense_intermediate_size": "intermediate_size",
        "expert_intermediate_size": "moe_intermediate_size",
        "num_local_experts": "num_experts",
    }
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        **Qwen3MoeConfig.base_model_tp_plan,
        "layers.*.mlp.shared_expert.gate_proj": "colwise",
        "layers.*.mlp.shared_expert.up_proj": "colwise",
        "layers.*.mlp.shared_expert.down_proj": "rowwise",
    }

    vocab_size: int = 157184
    intermediate_size: int = 8192
    moe_intermediate_size: int = 1024
    shared_expert_intermediate_size: int | None = None
    num_hidden_layers: int = 16
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    num_experts: int = 64
    moe_layer_freq: list[int] | None = None
    norm_topk_prob: bool | None = None  # type: ignore[assignment]
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    eos_token_id: int | list[int] | None = _EOS
    pad_token_id: int | None = _EOS
    mask_token_id: int | None = _MASK
    is_causal: bool = False
    published_model_type: str | None = None

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As transformers', which warns of a `model_type` that is not the class's own."""
        values, unused = super().get_config_dict(*args, **kwargs)
        if _PUBLISHED in (values.get("architectures") or ()) and values.get("model_type") != cls.model_type:
            values = {**values, "model_type": cls.model_type, "published_model_type": values.get("model_type")}
        return values, unused

    def __post_init__(self, **kwargs: Any) -> None:
        # Also an attribute, it would lead to the conversion of the dense model's checkpoints.
        model_type = kwargs.pop("model_type", None)
        self.published_model_type = self.published_model_type or model_type or self.model_type
        take_published_names(self, kwargs)
        if self.moe_layer_freq is None:
            self.moe_layer_freq = [int(i not in (self.mlp_only_layers or ())) for i in range(self.num_hidden_layers)]
        if len(self.moe_layer_freq) != self.num_hidden_layers:
            raise ValueError(
                f"`moe_layer_freq` has {len(self.moe_layer_freq)} entries, but `num_hidden_layers` is "
                f"{self.num_hidden_layers}."
            )
        self.mlp_only_layers = [i for i, has_experts in enumerate(self.moe_layer_freq) if not has_experts]
        super().__post_init__(**kwargs)

    def to_diff_dict(self) -> dict[str, Any]:
        """The content of config.json, in the published names.

        Returns:
            Published names and values, so that other loaders of LLaDA-MoE checkpoints can read what we save.
        """
        saved = {**self.architecture, **super().to_diff_dict()}
        for name in ("use_sliding_window", "sliding_window", "decoder_sparse_step", "mlp_only_layers"):
            saved.pop(name, None)
        for published in ("dense_intermediate_size", "expert_intermediate_size"):
            saved[published] = saved.pop(self.attribute_map[published], getattr(self, published))
        saved["model_type"] = saved.pop("published_model_type")
        return saved


class _BlockWithSharedExpert(Qwen3MoeSparseMoeBlock):
    """The experts of a layer, and one that every token visits."""

    def __init__(self, config: LLaDAMoEConfig, block: Qwen3MoeSparseMoeBlock) -> None:
        # Past the constructor of the block, whose parts are taken over.
        nn.Module.__init__(self)
        self.experts, self.gate = block.experts, block.gate
        self.shared_expert = Qwen3MoeMLP(config, intermediate_size=config.shared_expert_intermediate_size)

    def forward(self, hidden_states):
        return super().forward(hidden_states) + self.shared_expert(hidden_states)


class LLaDAMoEModel(FusedExperts, TrainedPadding, Qwen3MoeModel):
    """The body of LLaDA-MoE, without output head: `Qwen3MoeModel` with bidirectional attention."""

    config: LLaDAMoEConfig

    def __init__(self, config: LLaDAMoEConfig) -> None:
        super().__init__(config)
        for layer in self.layers:
            if isinstance(layer.mlp, Qwen3MoeSparseMoeBlock):
                layer.mlp.gate.norm_topk_prob = False
                if config.shared_expert_intermediate_size:
                    layer.mlp = _BlockWithSharedExpert(config, layer.mlp)
        self.post_init()


class LLaDAMoEForMaskedDiffusion(DiffusionGenerationMixin, FusedExperts, Qwen3MoeForCausalLM):
    """LLaDA-MoE with its output head; `generate` denoises.

    `forward` is that of `Qwen3MoeForCausalLM` (attention masks 2-D or 4-D, `position_ids`, `cache`, `logits_to_keep`),
    but every position sees every other and its logits are those of its own token. Loads the published checkpoints
    and writes their tensor names back (`save_original_format=False` writes the fused experts).

    Example:
        >>> from dllm_generate.families.lladamoe import LLaDAMoEForMaskedDiffusion
        >>> model = LLaDAMoEForMaskedDiffusion.from_pretrained("inclusionAI/LLaDA-MoE-7B-A1B-Instruct")
    """

    config: LLaDAMoEConfig

    def __init__(self, config: LLaDAMoEConfig) -> None:
        assemble_with_router(self, Qwen3MoeForCausalLM, LLaDAMoEModel, config)


_CONVERSION: list[WeightConverter | WeightRenaming] = [
    *FUSED,
    # The look-behind keeps a name of ours from being renamed twice.
    WeightRenaming(r"(?<!mlp)\.shared_expert\.", ".mlp.shared_expert."),
]

LLADA_MOE = Family(
    name="lladamoe",
    special_token_ids={"eos": _EOS},
    presets=default_presets("bidirectional", block_length=32),
)

register_native(LLADA_MOE, LLaDAMoEConfig, LLaDAMoEForMaskedDiffusion, _PUBLISHED, _CONVERSION)
