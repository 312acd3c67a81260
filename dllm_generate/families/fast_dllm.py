"""Fast-dLLM v2: Qwen2.5 layers with block-causal attention that predict the next position.

Fast-dLLM v2: Efficient Block-Diffusion LLM, arXiv 2509.26328.
"""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM, Qwen2Model

from dllm_generate.families.base import Family
from dllm_generate.families.masking import BlockCausalBody
from dllm_generate.families.native import assemble, register_native
from dllm_generate.families.presets import default_presets
from dllm_generate.families.published import TrainedPadding
from dllm_generate.families.qwen import PublishedQwenConfig
from dllm_generate.mixin import DiffusionGenerationMixin

_BOS, _EOS, _MASK = 151643, 151645, 151665
_PUBLISHED = {
    "schedule": "seeded",
    "block_length": 32,
    "schedule_config": {"sub_block_length": 8},
    "decoder": "threshold",
    "threshold": 0.9,
    "decoder_config": {"strict": True},
    "cache_policy": "block",
}


@strict
class Fast_dLLM_QwenConfig(PublishedQwenConfig, Qwen2Config):
    """Configuration of a Fast-dLLM v2 model (arXiv 2509.26328). The defaults are Fast_dLLM_v2_7B.

    Reads the published config.json as it is and writes its names back.

    Args:
        bd_size: number of positions of a block; also as `block_length`.
        mask_token_id: id of the mask token; None if the caller of `generate` is to give it.

    Raises:
        ValueError: for a config with sliding windows.
    """

    model_type = "Fast_dLLM_Qwen"
    default_theta = 1_000_000.0
    published_name = "Fast-dLLM v2"
    attribute_map: ClassVar[dict[str, str]] = {"block_length": "bd_size"}

    vocab_size: int = 152064
    hidden_size: int = 3584
    intermediate_size: int = 18944
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768
    use_cache: bool = False
    bos_token_id: int | None = _BOS
    eos_token_id: int | list[int] | None = _EOS
    pad_token_id: int | None = _EOS
    mask_token_id: int | None = _MASK
    bd_size: int = 32


class Fast_dLLM_QwenModel(BlockCausalBody, TrainedPadding, Qwen2Model):
    """The body of Fast-dLLM v2, without output head: `Qwen2Model` with block-causal attention."""

    config: Fast_dLLM_QwenConfig


class Fast_dLLM_QwenForCausalLM(DiffusionGenerationMixin, Qwen2ForCausalLM):
    """Fast-dLLM v2 with its output head; `generate` denoises.

    `forward` is that of `Qwen2ForCausalLM` (attention masks 2-D or 4-D, `position_ids`, `cache`, `logits_to_keep`), but
    a position sees its whole block and all earlier ones. As published, the logits of a position predict the next one.

    Example:
        >>> from dllm_generate.families.fast_dllm import Fast_dLLM_QwenForCausalLM
        >>> model = Fast_dLLM_QwenForCausalLM.from_pretrained("Efficient-Large-Model/Fast_dLLM_v2_7B", dtype="bfloat16")
    """

    config: Fast_dLLM_QwenConfig

    def __init__(self, config: Fast_dLLM_QwenConfig) -> None:
        assemble(self, Qwen2ForCausalLM, Fast_dLLM_QwenModel, config)


FAST_DLLM = Family(
    name="fast_dllm",
    logits_shift=True,
    attention="block_causal",
    block_length=32,
    prompt_is_one_block=False,
    special_token_ids={"eos": _EOS},
    presets={**default_presets("block_causal", block_length=32), "published": _PUBLISHED},
)

register_native(FAST_DLLM, Fast_dLLM_QwenConfig, Fast_dLLM_QwenForCausalLM, "Fast_dLLM_QwenForCausalLM")
