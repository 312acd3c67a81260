"""SDAR with a mixture of experts (SDAR-30B-A3B): Qwen3-MoE layers with block-causal attention.

SDAR: A Synergistic Diffusion-AutoRegression Paradigm, arXiv 2510.06303. The layout is that on which the public engines
which serve these checkpoints agree; no published checkpoint was run.
"""

from dataclasses import replace
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM, Qwen3MoeModel

from dllm_generate.families.experts import FUSED, FusedExperts, assemble_with_router
from dllm_generate.families.masking import BlockCausalBody
from dllm_generate.families.native import register_native
from dllm_generate.families.published import TrainedPadding
from dllm_generate.families.qwen import PublishedQwenConfig
from dllm_generate.families.sdar import SDAR, SDARConfig
from dllm_generate.mixin import DiffusionGenerationMixin


@strict
class SDARMoeConfig(PublishedQwenConfig, Qwen3MoeConfig):
    """Configuration of an SDAR model with experts (arXiv 2510.06303). The defaults are SDAR-30B-A3B-Chat.

    Reads the published config.json as it is and writes its names back.

    Args:
        head_dim: size of an attention head; None for `hidden_size / num_attention_heads`.
        block_size: number of positions of a block; also as `block_length`.
        mask_token_id: id of the mask token; None if the caller of `generate` is to give it.

    Raises:
        ValueError: for a config with sliding windows.
    """

    model_type = "sdar_moe"
    default_theta = SDARConfig.default_theta
    published_name = "SDAR-MoE"
    attribute_map: ClassVar[dict[str, str]] = {**SDARConfig.attribute_map, "num_local_experts": "num_experts"}

    num_hidden_layers: int = 48
    head_dim: int | None = 128
    norm_topk_prob: bool = True
    use_cache: bool = False
    bos_token_id: int | None = SDARConfig.bos_token_id
    eos_token_id: int | list[int] | None = SDARConfig.eos_token_id
    pad_token_id: int | None = SDARConfig.pad_token_id
    mask_token_id: int | None = SDARConfig.mask_token_id
    block_size: int = SDARConfig.block_size

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)


class SDARMoeModel(BlockCausalBody, FusedExperts, TrainedPadding, Qwen3MoeModel):
    """The body of SDAR-MoE, without output head: `Qwen3MoeModel` with block-causal attention."""

    config: SDARMoeConfig


class SDARMoeForCausalLM(DiffusionGenerationMixin, FusedExperts, Qwen3MoeForCausalLM):
    """SDAR-MoE with its output head; `generate` denoises.

    `forward` is that of `Qwen3MoeForCausalLM` (attention masks 2-D or 4-D, `position_ids`, `cache`, `logits_to_keep`),
    but a position sees its whole block and all earlier ones, and its logits are those of its own token. Reads and
    writes one matrix per expert (`save_original_format=False` writes the fused experts).

    Example:
        >>> from dllm_generate.families.sdar_moe import SDARMoeForCausalLM
        >>> model = SDARMoeForCausalLM.from_pretrained("JetLM/SDAR-30B-A3B-Chat", dtype="bfloat16", device_map="auto")
    """

    config: SDARMoeConfig

    def __init__(self, config: SDARMoeConfig) -> None:
        assemble_with_router(self, Qwen3MoeForCausalLM, SDARMoeModel, config)


SDAR_MOE = replace(SDAR, name="sdar_moe")

register_native(SDAR_MOE, SDARMoeConfig, SDARMoeForCausalLM, "SDARMoeForCausalLM", list(FUSED))
