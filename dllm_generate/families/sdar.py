"""SDAR and TraDo: Qwen3 layers with block-causal attention that predict their own position.

SDAR: A Synergistic Diffusion-AutoRegression Paradigm, arXiv 2510.06303.
"""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM, Qwen3Model

from dllm_generate.families.base import Family
from dllm_generate.families.masking import BlockCausalBody
from dllm_generate.families.native import assemble, register_native
from dllm_generate.families.presets import default_presets
from dllm_generate.families.published import TrainedPadding
from dllm_generate.families.qwen import PublishedQwenConfig
from dllm_generate.mixin import DiffusionGenerationMixin

_EOS, _EOT, _MASK = 151643, 151645, 151669


@strict
class SDARConfig(PublishedQwenConfig, Qwen3Config):
    """Configuration of an SDAR model (arXiv 2510.06303). The defaults are SDAR-8B-Chat.

    Reads the published config.json as it is and writes its names back.

    Args:
        block_size: number of positions of a block; also as `block_length`.
        mask_token_id: id of the mask token; None if the caller of `generate` is to give it.

    Raises:
        ValueError: for a config with sliding windows.
    """

    model_type = "sdar"
    default_theta = 1_000_000.0
    published_name = "SDAR"
    attribute_map: ClassVar[dict[str, str]] = {"block_length": "block_size"}

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = 36
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 32768
    use_cache: bool = False
    bos_token_id: int | None = _EOS
    eos_token_id: int | list[int] | None = _EOS
    pad_token_id: int | None = _EOS
    mask_token_id: int | None = _MASK
    block_size: int = 4


class SDARModel(BlockCausalBody, TrainedPadding, Qwen3Model):
    """The body of SDAR, without output head: `Qwen3Model` with block-causal attention."""

    config: SDARConfig


class SDARForCausalLM(DiffusionGenerationMixin, Qwen3ForCausalLM):
    """SDAR with its output head; `generate` denoises.

    `forward` is that of `Qwen3ForCausalLM` (attention masks 2-D or 4-D, `position_ids`, `cache`, `logits_to_keep`), but
    a position sees its whole block and all earlier ones, and its logits are those of its own token.

    Example:
        >>> from dllm_generate.families.sdar import SDARForCausalLM
        >>> model = SDARForCausalLM.from_pretrained("JetLM/SDAR-8B-Chat", dtype="bfloat16")
    """

    config: SDARConfig

    def __init__(self, config: SDARConfig) -> None:
        assemble(self, Qwen3ForCausalLM, SDARModel, config)


_DEFAULTS = default_presets("block_causal", block_length=4)

SDAR: Family = Family(
    name="sdar",
    attention="block_causal",
    block_length=4,
    prompt_is_one_block=False,
    special_token_ids={"eos": _EOS, "eot": _EOT},
    presets={**_DEFAULTS, "published": {**_DEFAULTS["published"], "decoder": "dynamic", "threshold": 0.85}},
)

register_native(SDAR, SDARConfig, SDARForCausalLM, "SDARForCausalLM")
