"""A decoder of somebody else's that breaks the contract is told so, by name, before anything of it is seen."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from models import MASK, counted_forwards
from transformers import TextStreamer

from dllm_generate import Decoder, DecoderOutput

IDS = torch.tensor([[3, 1, 4], [1, 5, 9]])


@dataclasses.dataclass(frozen=True)
class Foreign(Decoder):
    """Commits one position per step, and returns what `edit` makes of that."""

    edit: Callable[[DecoderOutput], Any] = lambda output: output

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        return self.edit(DecoderOutput(tokens, confidence, open_mask & (open_mask.cumsum(-1) == 1)))


@dataclasses.dataclass(frozen=True)
class Revocable(Foreign):
    """The same, of a class that may take commits back."""

    revocable: ClassVar[bool] = True


def replacing(**values):
    """An edit that puts other values, made from the present ones, into an output."""
    return lambda output: dataclasses.replace(output, **{n: f(getattr(output, n)) for n, f in values.items()})


BROKEN = [
    (lambda o: (o.tokens, o.commit), r"returned a tuple, but must return a DecoderOutput of tensors of shape \(2, 4\)"),
    (lambda o: None, "returned a NoneType, but must return a DecoderOutput"),
    (replacing(tokens=lambda x: x[:1]), r"returned `tokens` of shape \(1, 4\) .*must be a tensor of shape \(2, 4\)"),
    (replacing(tokens=lambda x: x.int()), "`tokens` .* and torch.int32, .* shape .2, 4., torch.int64"),
    (replacing(confidence=lambda x: x.double()), "`confidence` .* and torch.float64, .*, torch.float32"),
    (replacing(confidence=lambda x: x[..., None]), r"`confidence` of shape \(2, 4, 1\)"),
    (replacing(confidence=lambda x: None), "returned `confidence` as NoneType, but it must be a tensor"),
    (replacing(commit=lambda x: x.long()), "`commit` .* and torch.int64, .*, torch.bool"),
    (replacing(commit=lambda x: x.any(-1)), r"`commit` of shape \(2,\)"),
    (replacing(reopen=lambda x: torch.zeros(2, 4, dtype=torch.bool)), "must set `revocable = True`"),
    (replacing(edit=lambda x: torch.zeros(2, 4, dtype=torch.bool)), "`edit`, but its class must set `revocable"),
    (
        replacing(settled=lambda x: torch.zeros(2, 4, dtype=torch.bool)),
        r"`settled` .* must be a tensor of shape \(2,\)",
    ),
    (replacing(waits=lambda x: torch.zeros(2)), r"`waits` .* must be a tensor of shape \(2,\), torch.bool"),
]


@pytest.mark.parametrize(("edit", "message"), BROKEN, ids=range(len(BROKEN)))
def test_a_wrong_output_names_the_decoder_in_the_first_step(llada, edit, message):
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match="`decoder` Foreign returned .*") as error:
        llada.generate(IDS, max_new_tokens=8, block_length=4, decoder=Foreign(edit=edit))
    assert error.match(message) and len(shapes) == 1
    assert llada.generate(IDS, max_new_tokens=8, decoder=Foreign()).shape == (2, 11)


def test_a_wrong_reopen(llada):
    edit = replacing(reopen=lambda x: torch.zeros(2, 4))
    with pytest.raises(ValueError, match="`decoder` Revocable returned `reopen` .* and torch.float32"):
        llada.generate(IDS, max_new_tokens=8, block_length=4, decoder=Revocable(edit=edit))


def masking(row, step):
    """An edit that predicts the mask id in a row, in a step of the call."""
    calls = []

    def edit(output):
        calls.append(1)
        if len(calls) == step:
            output.tokens[row] = MASK
        return output

    return edit


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("unroll_steps", [1, 4])
def test_the_mask_id_is_never_committed(llada, step, unroll_steps):
    decoder = Foreign(edit=masking(1, step))
    with pytest.raises(ValueError, match=rf"`decoder` Foreign committed the mask id {MASK} in row \[1\]"):
        llada.generate(IDS, max_new_tokens=8, decoder=decoder, unroll_steps=unroll_steps, eos_token_id=MASK)


def test_no_token_of_such_a_step_is_streamed(llada, tokenizer):
    class Seen(TextStreamer):
        ids: ClassVar[list[int]] = []

        def put(self, value):
            self.ids.extend(value.flatten().tolist())

    with pytest.raises(ValueError, match="committed the mask id"):
        llada.generate(
            IDS[:1],
            max_new_tokens=8,
            block_length=1,
            decoder=Foreign(edit=masking(0, 3)),
            streamer=Seen(tokenizer),
        )
    assert len(Seen.ids) == 3 + 2 and MASK not in Seen.ids


def test_a_mask_id_that_is_not_committed_is_no_fault(llada):
    """A decoder may hand the present tokens back where it commits nothing."""
    edit = lambda o: dataclasses.replace(o, tokens=torch.where(o.commit, o.tokens, MASK))
    plain, handed = (llada.generate(IDS, max_new_tokens=8, decoder=d) for d in (Foreign(), Foreign(edit=edit)))
    assert torch.equal(plain, handed)


def test_bad_scores_are_not_blamed_on_the_decoder(llada):
    poison = llada.get_output_embeddings().register_forward_hook(lambda module, args, output: output * float("nan"))
    try:
        with pytest.raises(ValueError, match="The model gave NaN"):
            llada.generate(IDS, max_new_tokens=8, decoder=Foreign(edit=masking(0, 1)))
    finally:
        poison.remove()
