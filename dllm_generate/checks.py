"""What can only be checked once a call is prepared: ids, lengths and streamers, before anything is allocated."""

import torch

from .registry import is_int, require
from .request import Request
from .streamers import check_streamer
from .traits import traits_of


def check_request(request: Request) -> None:
    """Raises ValueError for ids that the model has not, a text that is too long, and a streamer out of place."""
    vocabulary = request.vocabulary
    _check_prompt(request.input_ids, "input_ids", vocabulary)
    _check_special(request, vocabulary)
    _check_length(request, request.attention_mask, request.input_ids)
    _check_holes(request)
    if request.guidance is not None and request.guidance.negative_ids is not None:
        _check_negative(request, request.guidance.negative_ids, request.guidance.negative_mask, vocabulary)
    check_streamer(request.streamer, request.input_ids.shape[0])
    if request.streamer is not None and request.config.infill:
        raise ValueError(
            "`streamer` is given, but must be None with `infill`: its text does not grow from left to right."
        )


def _check_prompt(ids: torch.Tensor, option: str, vocabulary: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    require(0 <= low and high < vocabulary, option, f"{low} to {high}", f"within the {vocabulary} tokens of the model")


def _check_special(request: Request, vocabulary: int) -> None:
    config = request.config
    allowed = f"token ids from 0 to {vocabulary - 1}"
    named = {
        "suppress_tokens": config.suppress_tokens or (),
        "begin_suppress_tokens": config.begin_suppress_tokens or (),
    }
    for option, ids in named.items():
        require(all(is_int(i) and 0 <= i < vocabulary for i in ids), option, getattr(config, option), allowed)
    for option in ("eos_token_id", "pad_token_id"):
        value = getattr(config, option)
        # The model's own may stem from a larger vocabulary: of them, those that it cannot write are left out.
        if value is not None and value != getattr(request.model.generation_config, option):
            ids = value if isinstance(value, (list, tuple)) else [value]
            require(all(0 <= i < vocabulary for i in ids), option, value, allowed)


def _check_length(request: Request, mask: torch.Tensor | None, ids: torch.Tensor) -> None:
    limit = getattr(request.model.config.get_text_config(), "max_position_embeddings", None)
    # Some configs say -1 where there is no limit.
    if limit is None or limit < 1:
        return
    limit -= traits_of(request.model).first_position
    longest = ids.shape[1] if mask is None else int((mask != 0).sum(1).max())
    if longest + request.new_tokens > limit:
        raise ValueError(
            f"The longest prompt has {longest} tokens and `max_new_tokens` is {request.new_tokens}, but the model's "
            f"`max_position_embeddings` is {limit}."
        )


def _check_holes(request: Request) -> None:
    """A model that counts positions itself would count those that the mask leaves out inside a prompt."""
    if request.attention_mask is None or not traits_of(request.model).own_positions:
        return
    real = request.attention_mask != 0
    begins = (real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0]
    if int(begins.max()) > 1:
        raise ValueError(
            "`attention_mask` leaves out tokens inside a prompt, but must do so at its ends only: the model counts "
            "positions by itself."
        )


def _check_negative(request: Request, ids: torch.Tensor, mask: torch.Tensor | None, vocabulary: int) -> None:
    batch, option = request.input_ids.shape[0], "negative_prompt_ids"
    require(ids.dim() == 2 and ids.numel() > 0, option, tuple(ids.shape), "a prompt of shape (batch, length)")
    require(batch % ids.shape[0] == 0, option, tuple(ids.shape), f"of as many rows as the batch has, {batch}")
    _check_prompt(ids, option, vocabulary)
    if mask is not None:
        option, shape = "negative_prompt_attention_mask", tuple(mask.shape)
        require(shape == tuple(ids.shape), option, shape, f"of shape {tuple(ids.shape)}")
        require(bool((mask != 0).any(1).all()), option, "zero in a whole row", "nonzero for a token of every row")
    _check_length(request, mask, ids)
