"""Text generation with diffusion language models behind transformers' `model.generate()`."""

from .caches import POLICIES, CachePolicy, DiffusionCache
from .canvas import Canvas
from .config import DiffusionGenerationConfig
from .decoders import DECODERS, Decoder, DecoderOutput, DecoderState
from .families.llada import LLaDAConfig, LLaDAForMaskedDiffusion
from .mixin import DiffusionGenerationMixin, attach, diffusion_generate
from .output import DiffusionGenerateOutput
from .schedules import SCHEDULES, Schedule
from .streamers import RowStreamer

__version__ = "0.1.0"

__all__ = [
    "DECODERS",
    "POLICIES",
    "SCHEDULES",
    "CachePolicy",
    "Canvas",
    "Decoder",
    "DecoderOutput",
    "DecoderState",
    "DiffusionCache",
    "DiffusionGenerateOutput",
    "DiffusionGenerationConfig",
    "DiffusionGenerationMixin",
    "LLaDAConfig",
    "LLaDAForMaskedDiffusion",
    "RowStreamer",
    "Schedule",
    "attach",
    "diffusion_generate",
]
