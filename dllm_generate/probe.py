"""Is a model what decoding relies on? Asked once, when it is attached by hand."""

import weakref
from typing import Any

import torch

from .backbone import Backbone

_CHECKED: weakref.WeakSet = weakref.WeakSet()


@torch.no_grad()
def check_model(model: Any) -> None:
    """Runs a few forwards of one and two tokens.

    Raises:
        ValueError: if the model ignores the attention mask, so that padding would count as text, if a position does not
            see what stands behind it, or if its logits are not those of its output embeddings on its last hidden state.
    """
    if model in _CHECKED:
        return
    backbone = Backbone(model)
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    device = model.get_input_embeddings().weight.device
    last = model.get_input_embeddings().weight.shape[0] - 1

    def hidden(ids: list[int], visible: list[bool]) -> torch.Tensor:
        places = torch.arange(len(ids), device=device)[None]
        keys = torch.tensor([visible], device=device)
        return backbone.hidden_states(torch.tensor([ids], device=device), places, keys, None)[0]

    was_training = model.training
    model.eval()
    try:
        both, alone = hidden([0, last], [True, True]), hidden([0, last], [False, True])
        other = hidden([0, max(last - 1, 0)], [True, True])
        # A single token sees the same in a causal model.
        whole = model(input_ids=torch.tensor([[last]], device=device), use_cache=False).logits[0]
        split = backbone.scores(hidden([last], [True])[None])[0]
    finally:
        model.train(was_training)
    name = type(model).__name__
    if torch.equal(both[1], alone[1]):
        raise ValueError(f"{name} ignores `attention_mask`: in a batch, padding would be read as text.")
    if torch.equal(both[0], other[0]):
        raise ValueError(
            f"{name} attends to earlier positions only, whatever `attention_mask` says: it cannot denoise."
        )
    if not torch.allclose(whole.float(), split.float(), rtol=2e-2, atol=2e-2):
        raise ValueError(f"{name} does more to its hidden states than its output embeddings do: it needs a family.")
    _CHECKED.add(model)
