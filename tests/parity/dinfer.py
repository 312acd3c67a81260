"""What all traces of dInfer's loops have in common."""

import dataclasses

from models import EOS

from dllm_generate.decoders.credit import CreditDecoder
from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.decoders.hierarchical import HierarchicalDecoder
from dllm_generate.decoders.threshold import ThresholdDecoder


def decoder_of(trace):
    params = trace["params"]
    if "decoding" in params:
        if "threshold" not in params:
            return FixedDecoder(steps=params["steps"])
        return HierarchicalDecoder(params["threshold"], params["low_threshold"])
    if "decoder" not in params:
        return ThresholdDecoder(params["threshold"])
    # The kind has two names in the golden data.
    kind, threshold = params["decoder"].get("type") or params["decoder"]["t"], params["decoder"]["threshold"]
    if kind == "hierarchy":
        return HierarchicalDecoder(threshold, params["decoder"]["low_threshold"], ties=True)
    return {"threshold": ThresholdDecoder, "credit": CreditDecoder}[kind](threshold, near_tie=1e-5)


@dataclasses.dataclass
class Published:
    """What the published run did to one row: the forwards that wrote to it, their inputs, and what they wrote."""

    inputs: list[list[int]]
    writes: list[dict[int, int]]

    @classmethod
    def of(cls, trace, row):
        shift = bool(trace["params"].get("use_shift"))
        # Forwards on soft embeddings have no ids.
        every = [call["input_ids"][row] if "input_ids" in call else [] for call in trace["forward_calls"]]
        if "decode_calls" in trace:
            writes = [
                {position + shift: token for at, position, token in call["changed"] if at == row}
                for call in trace["decode_calls"]
            ]
        else:
            grids = [*every, trace["output"][row]]
            writes = [
                {i: new for i, (old, new) in enumerate(zip(*pair)) if old != new} for pair in zip(grids, grids[1:])
            ]
        kept = [i for i, written in enumerate(writes) if written]
        return cls([every[i] for i in kept], [writes[i] for i in kept])

    def steps_until_eos(self, prompt):
        """Number of the writes up to the one behind which an EOS has nothing open before it."""
        text = {}
        for count, written in enumerate(self.writes, 1):
            text.update(written)
            position = len(prompt)
            while text.get(position, EOS) != EOS:
                position += 1
            if position in text:
                return count
        return len(self.writes)


def text_of(trace, row):
    """The row up to its first EOS."""
    tokens, length = trace.get("final_x", trace["output"])[row], len(trace["prompt"][row])
    text = tokens[length:]
    return tokens[: length + text.index(EOS) + 1] if EOS in text else tokens
