"""Text generation with diffusion language models behind transformers' `model.generate()`."""

from .attaching import attach, diffusion_generate
from .caches import POLICIES, CachePolicy, DiffusionCache
from .canvas import Canvas
from .config import DiffusionGenerationConfig
from .decoders import DECODERS, Decoder, DecoderOutput, DecoderState
from .families import diffusion_gemma as _diffusion_gemma  # noqa: F401  Registers itself; the model is transformers'.
from .families.dream import DreamConfig, DreamForMaskedDiffusion
from .families.fast_dllm import Fast_dLLM_QwenConfig, Fast_dLLM_QwenForCausalLM
from .families.llada import LLaDAConfig, LLaDAForMaskedDiffusion
from .families.llada2 import LLaDA2MoeConfig, LLaDA2MoeForMaskedDiffusion
from .families.lladamoe import LLaDAMoEConfig, LLaDAMoEForMaskedDiffusion
from .families.sdar import SDARConfig, SDARForCausalLM
from .families.sdar_moe import SDARMoeConfig, SDARMoeForCausalLM
from .mixin import DiffusionGenerationMixin
from .output import DiffusionGenerateOutput
from .schedules import SCHEDULES, Schedule
from .streamers import RowStreamer

__version__ = "0.1.0"

__all__ = [
    "CachePolicy",
    "Canvas",
    "DECODERS",
    "Decoder",
    "DecoderOutput",
    "DecoderState",
    "DiffusionCache",
    "DiffusionGenerateOutput",
    "DiffusionGenerationConfig",
    "DiffusionGenerationMixin",
    "DreamConfig",
    "DreamForMaskedDiffusion",
    "Fast_dLLM_QwenConfig",
    "Fast_dLLM_QwenForCausalLM",
    "LLaDA2MoeConfig",
    "LLaDA2MoeForMaskedDiffusion",
    "LLaDAConfig",
    "LLaDAForMaskedDiffusion",
    "LLaDAMoEConfig",
    "LLaDAMoEForMaskedDiffusion",
    "POLICIES",
    "RowStreamer",
    "SCHEDULES",
    "SDARConfig",
    "SDARForCausalLM",
    "SDARMoeConfig",
    "SDARMoeForCausalLM",
    "Schedule",
    "attach",
    "diffusion_generate",
]
