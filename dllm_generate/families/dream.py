"""Dream-7B, Dream-Coder and DiffuCoder: Qwen2 layers that attend in both directions and predict the next position.

Dream 7B: Diffusion Large Language Models, arXiv 2508.15487; DiffuCoder, arXiv 2506.20639.
"""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM, Qwen2Model

from dllm_generate.families.base import Family
from dllm_generate.families.native import assemble, register_native
from dllm_generate.families.presets import default_presets
from dllm_generate.families.published import TrainedPadding
from dllm_generate.families.qwen import PublishedQwenConfig
from dllm_generate.mixin import DiffusionGenerationMixin

_EOS, _EOT, _MASK = 151643, 151645, 151666
# Dream knows no blocks: as long as its longest text, one holds the whole answer.
_PUBLISHED = {"schedule": "blockwise", "block_length": 131072, "decoder": "dream", "cache_policy": "none"}


@strict
class DreamConfig(PublishedQwenConfig, Qwen2Config):
    """Configuration of a Dream model (arXiv 2508.15487). The defaults are Dream-7B.

    Reads the published config.json as it is and writes its names back.

    Args:
        mask_token_id: id of the mask token; None if the caller of `generate` is to give it.
        is_causal: False: every position attends to every other.

    Raises:
        ValueError: for a config of another architecture (sliding windows, multimodal RoPE, block-wise attention).
    """

    model_type = "Dream"
    default_theta = 1_000_000.0
    published_name = "Dream"
    published_classes: ClassVar[dict[str, str]] = {"DreamForMaskedDiffusion": "DreamModel"}
    # `block_size` is in configs of block-causal models that came later under the same `model_type`.
    architecture: ClassVar[dict[str, Any]] = {
        **PublishedQwenConfig.architecture,
        "use_mrope": False,
        "full_attn_mask": True,
        "block_size": None,
    }

    vocab_size: int = 152064
    hidden_size: int = 3584
    intermediate_size: int = 18944
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 131072
    use_cache: bool = False
    bos_token_id: int | None = _EOS
    eos_token_id: int | list[int] | None = _EOS
    pad_token_id: int | None = _EOS
    mask_token_id: int | None = _MASK
    is_causal: bool = False


class DreamModel(TrainedPadding, Qwen2Model):
    """The body of Dream, without output head: `Qwen2Model` with bidirectional attention.

    The published class of this name has a head: here that is [`DreamForMaskedDiffusion`].
    """

    config: DreamConfig


class DreamForMaskedDiffusion(DiffusionGenerationMixin, Qwen2ForCausalLM):
    """Dream with its output head; `generate` denoises.

    `forward` is that of `Qwen2ForCausalLM` (attention masks 2-D or 4-D, `position_ids`, `cache`, `logits_to_keep`), but
    every position sees every other. As published, the logits of a position predict the next one.

    Example:
        >>> from dllm_generate.families.dream import DreamForMaskedDiffusion
        >>> model = DreamForMaskedDiffusion.from_pretrained("Dream-org/Dream-v0-Instruct-7B", dtype="bfloat16")
    """

    config: DreamConfig

    def __init__(self, config: DreamConfig) -> None:
        assemble(self, Qwen2ForCausalLM, DreamModel, config)


DREAM = Family(
    name="dream",
    logits_shift=True,
    special_token_ids={"eos": _EOS, "eot": _EOT},
    presets={**default_presets("bidirectional", block_length=32), "published": _PUBLISHED},
)

register_native(DREAM, DreamConfig, DreamForMaskedDiffusion, "DreamModel")
