"""Training and fine-tuning of diffusion language models: a recipe in, a model folder out."""

from .base import Objective, register_objective
from .recipe import Recipe
from .run import Training, train
from .sources import Source, register_source

__all__ = ["Objective", "Recipe", "Source", "Training", "register_objective", "register_source", "train"]
