"""Does a model do with its attention mask what decoding relies on? Asked once, when a model is attached by hand."""

from typing import Any

import torch

from .backbone import Backbone


@torch.no_grad()
def check_attention(model: Any) -> None:
    """Runs three forwards of two tokens.

    Raises:
        ValueError: if the model ignores the attention mask, so that padding would count as text, or if a position does
            not see what stands behind it.
    """
    backbone = Backbone(model)
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    device = model.get_input_embeddings().weight.device
    last = model.get_input_embeddings().weight.shape[0] - 1

    def hidden(ids: list[int], visible: list[bool]) -> torch.Tensor:
        places = torch.arange(2, device=device)[None]
        keys = torch.tensor([visible], device=device)
        return backbone.hidden_states(torch.tensor([ids], device=device), places, keys, None)[0]

    was_training = model.training
    model.eval()
    try:
        both, alone = hidden([0, last], [True, True]), hidden([0, last], [False, True])
        other = hidden([0, max(last - 1, 0)], [True, True])
    finally:
        model.train(was_training)
    name = type(model).__name__
    if torch.equal(both[1], alone[1]):
        raise ValueError(f"{name} ignores `attention_mask`: in a batch, padding would be read as text.")
    if torch.equal(both[0], other[0]):
        raise ValueError(
            f"{name} attends to earlier positions only, whatever `attention_mask` says: it cannot denoise."
        )
