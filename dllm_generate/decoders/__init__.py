"""Decoders: which of the predictions of a step are committed."""

from .base import DECODERS, Decoder, DecoderOutput, DecoderState

__all__ = ["DECODERS", "Decoder", "DecoderOutput", "DecoderState"]
