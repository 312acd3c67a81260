"""Tokens for one step: in a model with a mask, what is not accepted is masked again."""

import pytest
import torch
from models import EOS, MASK, Scripted, padded, row_of_logits, table
from probes import BLOCK_CAUSAL, BlockIdling, Idling, answer
from promises import compare, same

from dllm_generate import Decoder, DecoderOutput, generation
from dllm_generate.schedules.block_diffusion import BlockDiffusionSchedule
from dllm_generate.schedules.blockwise import BlockwiseSchedule

PROMPT = torch.tensor([[5]])
SURE, UNSURE = (7, 0.9999), (9, 0.3)
LOOSE = {"entropy_bound": 3.0, "t_min": 0.5, "t_max": 1.0, "confidence_threshold": 1.5}


def generate(model, inputs=PROMPT, **options):
    inputs = {"input_ids": inputs} if isinstance(inputs, torch.Tensor) else inputs
    defaults = {"decoder": "renoise", "max_new_tokens": 8, "block_length": 4, "eos_token_id": EOS}
    return model.generate(**inputs, **{**defaults, "return_dict_in_generate": True, **options})


def test_accepted_tokens_are_shown_and_not_kept():
    """The model is sure of one position in every step, of another one each time; the last step commits its best."""
    cells = [[SURE, UNSURE], [UNSURE, SURE], [UNSURE, UNSURE]]

    def script(call):
        rows = [row_of_logits(0, 0.5)] + [row_of_logits(*cell) for cell in cells[call.number]]
        return torch.stack(rows).expand(len(call.position_ids), -1, -1)

    model = Scripted(script)
    bound = {"entropy_bound": 1e-9, "confidence_threshold": None}
    output = generate(model, max_new_tokens=2, block_length=2, steps_per_block=3, decoder_config=bound)
    seen = [call.input_ids[0, 1:].tolist() for call in model.calls]
    assert seen == [[MASK, MASK], [7, MASK], [MASK, 7]]
    assert answer(output) == [9, 9] and output.commit_step.tolist() == [[2, 2]]


@pytest.mark.parametrize(("stable", "steps"), [(0, 1), (1, 2), (3, 4), (9, 5)])
def test_a_block_ends_when_it_is_stable(stable, steps):
    cells = [SURE] * 4
    model = Scripted(table(*cells))
    output = generate(model, max_new_tokens=4, steps_per_block=5, decoder_config={"stability_threshold": stable})
    assert output.num_forwards == steps and answer(output) == [7] * 4


def test_a_block_goes_on_while_it_is_unsure():
    model = Scripted(table(SURE, SURE, UNSURE))
    wait = generate(model, max_new_tokens=3, steps_per_block=6)
    assert wait.num_forwards == 6
    assert generate(model, max_new_tokens=3, decoder_config={"confidence_threshold": 3.0}).num_forwards == 2


@pytest.mark.parametrize(
    ("options", "schedules"),
    [
        ({"cache_policy": "dual"}, (BlockwiseSchedule, Idling)),
        ({**BLOCK_CAUSAL, "cache_policy": "block"}, (BlockDiffusionSchedule, BlockIdling)),
    ],
    ids=["bidirectional", "block_causal"],
)
def test_rows_idleness_and_unrolling(llada, monkeypatch, options, schedules):
    prompts = [[5], [3, 1, 4, 1, 5], [9, 2, 6]]
    options = {**options, "steps_per_block": 5, "decoder_config": LOOSE, "do_sample": True, "top_k": 9}
    options |= {"schedule": None, "eos_token_id": [EOS, 17, 36], "pad_token_id": 60}
    call = lambda inputs, **more: generate(llada, inputs, **{**options, **more})
    monkeypatch.setattr(generation, "_seed", lambda: 11)
    plain = call(padded(prompts), schedule=schedules[0](4))
    same(plain, call(padded(prompts), schedule=schedules[1](4, salt=5)))
    same(plain, call(padded(prompts), schedule=schedules[0](4), unroll_steps=3))
    assert MASK not in plain.sequences
    for row, prompt in enumerate(prompts):
        # The noise of row r is that of row 0 under a seed that is larger by r.
        monkeypatch.setattr(generation, "_seed", lambda row=row: 11 + row)
        compare(plain, row, call(torch.tensor([prompt]), schedule=schedules[0](4)))


class Provisional(Decoder):
    """Commits the first open position, and puts `shown` into all others."""

    name = "provisional"

    def __init__(self, shown):
        super().__init__()
        object.__setattr__(self, "shown", shown)

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        first = open_mask & (open_mask.cumsum(-1) == 1)
        return DecoderOutput(tokens, confidence, first, provisional=self.shown(tokens))


def test_only_open_positions_of_the_block_hold_them():
    model = Scripted(table(*[(7, 0.9)] * 5))
    generate(model, max_new_tokens=5, block_length=3, decoder=Provisional(lambda tokens: torch.full_like(tokens, 4)))
    seen = [call.input_ids[0, 1:].tolist() for call in model.calls]
    assert seen == [[MASK] * 5, [7, 4, 4, MASK, MASK], [7, 7, 4, MASK, MASK], [7, 7, 7, MASK, MASK], [7, 7, 7, 7, 4]]


def test_a_wrong_form_is_named(llada):
    with pytest.raises(ValueError, match="`decoder` Provisional returned `provisional` .* and torch.float32"):
        generate(llada, decoder=Provisional(lambda tokens: tokens.float()))
