"""Checkpoints on disk: what a folder holds, and its other layout. No weights are loaded, and none are held whole."""

from .convert import Conversion, convert_checkpoint
from .report import Report, inspect_checkpoint

__all__ = ["Conversion", "Report", "convert_checkpoint", "inspect_checkpoint"]
