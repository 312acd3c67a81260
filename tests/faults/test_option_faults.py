"""Options and models that are named instead of being ignored or failing inside."""

import pytest
import torch
from kin import member
from models import counted_forwards, tiny_llada
from torch import nn
from transformers import IBertConfig, IBertForMaskedLM

from dllm_generate import attach, diffusion_generate

PROMPT = torch.tensor([[3, 1, 4]])
FACTS = {"mask_token_id": 63, "logits_shift": False, "attention": "bidirectional", "eos_token_id": 62}


class Drafts:
    """Notes how far the drafts reach behind the prompt."""

    def __init__(self):
        self.count, self.farthest = -PROMPT.shape[1], 0

    def put(self, value):
        self.count += value.numel()

    def put_draft(self, value):
        self.farthest = max(self.farthest, self.count + len(value))

    def end(self):
        pass


@pytest.mark.parametrize("schedule", ["pipelined", "block_diffusion"])
def test_a_draft_ends_with_the_answer(schedule):
    """Blocks are decoded as a whole; what lies behind the answer is nobody's draft."""
    drafts = Drafts()
    options = {"schedule": schedule, "decoder": "threshold", "threshold": 0.3, "eos_token_id": None}
    member("sdar").generate(PROMPT, **options, max_new_tokens=10, streamer=drafts)
    assert 0 < drafts.farthest <= 10


@pytest.mark.parametrize("policy", ["none", "block"])
@pytest.mark.parametrize("schedule", ["pipelined", "block_diffusion"])
def test_a_suffix_window_is_refused_where_nothing_behind_is_seen(schedule, policy):
    options = {"schedule": schedule, "cache_policy": policy, "policy_config": {"suffix_window": 2}}
    with pytest.raises(ValueError, match="`suffix_window` is 2, but must be None for block-causal"):
        member("sdar").generate(PROMPT, **options, max_new_tokens=8)


@pytest.mark.parametrize("thing", [None, "gpt2", nn.Linear(2, 2)])
def test_what_is_no_model_is_named(thing):
    for call in (attach, lambda thing: diffusion_generate(thing, PROMPT, max_new_tokens=2, **FACTS)):
        with pytest.raises(ValueError, match=f"`model` is a {type(thing).__name__}, but must be a loaded model"):
            call(thing)


@pytest.mark.parametrize("limit", [-1, 0])
def test_no_limit_of_positions(limit):
    model = tiny_llada()
    model.config.max_position_embeddings = limit
    assert model.generate(PROMPT, max_new_tokens=4).shape == (1, 7)


@pytest.mark.parametrize(
    "options",
    [{"forced_eos_token_id": 5}, {"no_repeat_ngram_size": 2}, {"exponential_decay_length_penalty": (2, 1.5)}],
)
def test_options_that_need_an_order_are_named(options):
    model = tiny_llada()
    with counted_forwards(model) as shapes, pytest.raises(ValueError, match=f"`{next(iter(options))}` is set"):
        model.generate(PROMPT, max_new_tokens=4, **options)
    assert not shapes


def test_smoothing_needs_embeddings_that_are_vectors():
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    model = attach(IBertForMaskedLM(IBertConfig(**sizes, num_hidden_layers=1, pad_token_id=1)).eval())
    options = {"decoder": "threshold", "max_new_tokens": 4, **FACTS}
    assert model.generate(PROMPT, **options).shape == (1, 7)
    with pytest.raises(ValueError, match="`smoothing` is on, but must be off with IBertForMaskedLM"):
        model.generate(PROMPT, **options, smoothing=True)
