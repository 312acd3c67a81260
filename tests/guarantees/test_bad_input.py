"""Bad input raises the named error before the first forward, and the next call works."""

import pytest
import torch
from models import EOS, MASK, PAD, Scripted, counted_forwards, padded, table, tiny_llada
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from dllm_generate import attach

IDS = torch.tensor([[3, 1, 4, 1, 5]])
ROWS = torch.tensor([[3, 1, 4], [1, 5, 9]])

BAD = {
    "no prompt": ({"inputs": None}, r"`input_ids` is a NoneType"),
    "empty prompt": ({"inputs": torch.zeros(1, 0, dtype=torch.long)}, r"`input_ids` is \(1, 0\), but must be a prompt"),
    "empty batch": ({"inputs": torch.zeros(0, 4, dtype=torch.long)}, r"`input_ids` is \(0, 4\)"),
    "3-D prompt": ({"inputs": IDS[None]}, r"`input_ids` is \(1, 1, 5\), but must be of shape \(batch, length\)"),
    "list": ({"inputs": [[1, 2]]}, r"`input_ids` is a list, but must be a LongTensor"),
    "float ids": ({"inputs": IDS.float()}, r"`input_ids` is 'torch.float32', but must be of an integer dtype"),
    "bool ids": ({"inputs": IDS.bool()}, r"`input_ids` is 'torch.bool'"),
    "twice": ({"input_ids": IDS}, r"both as `inputs` and as `input_ids`"),
    "narrow mask": ({"attention_mask": torch.ones(1, 4)}, r"`attention_mask` is \(1, 4\), .* of shape \(1, 5\)"),
    "mask of another batch": ({"attention_mask": torch.ones(2, 5)}, r"`attention_mask` is \(2, 5\)"),
    "4-D mask": ({"attention_mask": torch.ones(1, 1, 5, 5)}, r"`attention_mask` is \(1, 1, 5, 5\)"),
    "row without a token": (
        {"inputs": ROWS, "attention_mask": torch.tensor([[0, 0, 0], [1, 1, 1]])},
        "`attention_mask` leaves a row without any token",
    ),
    "max_new_tokens 0": ({"max_new_tokens": 0}, "`max_new_tokens` is 0, but must be an int greater than 0"),
    "max_length": ({"max_new_tokens": None, "max_length": 4}, "max_length"),
    "temperature": ({"temperature": -1.0}, "`temperature` is -1.0, but must be a number >= 0"),
    "threshold": ({"decoder": "threshold", "threshold": 2}, r"`threshold` is 2, but must be a number in \(0, 1\]"),
    "decoder": ({"decoder": "x"}, r"`decoder` is 'x', but must be one of \['"),
    "schedule": ({"schedule": "x"}, r"`schedule` is 'x', but must be one of \['"),
    "policy": ({"cache_policy": "x"}, r"`cache_policy` is 'x', but must be one of \['"),
    "interval": (
        {"cache_policy": "dual", "policy_config": {"refresh_interval": 0}},
        "`refresh_interval` is 0, but must be None or an int > 0",
    ),
    "mask id": ({"mask_token_id": 64}, "`mask_token_id` is 64, but the model has 64 token embeddings"),
    "context": ({"max_new_tokens": 508}, "has 5 tokens and `max_new_tokens` is 508, .* is 512"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_the_named_error_before_any_forward(llada, kind):
    change, message = BAD[kind]
    call = {"inputs": IDS, "max_new_tokens": 4, **change}
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=message):
        llada.generate(**call)
    assert not shapes
    assert llada.generate(IDS, max_new_tokens=4).shape == (1, 9)


def test_no_mask_token():
    model = tiny_llada(mask_token_id=None)
    with counted_forwards(model) as shapes, pytest.raises(ValueError, match="No mask token: set `mask_token_id`"):
        model.generate(IDS, max_new_tokens=2)
    assert not shapes
    assert model.generate(IDS, max_new_tokens=2, mask_token_id=MASK).shape == (1, 7)


def test_the_context_limit_counts_tokens_of_the_longest_row():
    """Padding does not count, and a call that just fits works."""
    model = tiny_llada(max_position_embeddings=16)
    batch = padded([[1], [2] * 10])
    assert model.generate(**batch, max_new_tokens=6, eos_token_id=MASK).shape == (2, 16)
    assert model.generate(**padded([[1, 2, 3]], pad=0), max_new_tokens=13, block_length=8, eos_token_id=MASK).shape == (
        1,
        16,
    )
    wide = {"input_ids": torch.full((1, 30), PAD), "attention_mask": torch.zeros(1, 30).long()}
    wide["input_ids"][0, -10:], wide["attention_mask"][0, -10:] = 2, 1
    assert model.generate(**wide, max_new_tokens=6).shape[1] <= 36
    with pytest.raises(ValueError, match="has 10 tokens and `max_new_tokens` is 7, .* `max_position_embeddings` is 16"):
        model.generate(**batch, max_new_tokens=7)
    with pytest.raises(ValueError, match="has 12 tokens and `max_new_tokens` is 6"):
        model.generate(IDS, max_new_tokens=6, guidance_scale=2.0, negative_prompt_ids=torch.ones(1, 12).long())
    with pytest.raises(ValueError, match="has 17 tokens"):
        model.generate(torch.full((1, 17), MASK), infill=True)
    assert model.generate(torch.full((1, 16), MASK), infill=True, eos_token_id=MASK).shape == (1, 16)


def nan_in_row(row, at_call=0):
    """Logits that are NaN at one position of one row of the batch."""
    cells = table(*[(5, 0.5 + 0.03 * i) for i in range(12)])

    def script(call):
        logits = cells[call.position_ids].clone()
        if call.number == at_call:
            logits[row, -1, 7] = torch.nan
        return logits

    return Scripted(script)


@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
@pytest.mark.parametrize("decoder", ["fixed", "threshold", "factor"])
@pytest.mark.parametrize("row", [0, 1])
def test_nan_logits_name_the_row(decoder, policy, row):
    model = nan_in_row(row)
    options = {"decoder": decoder, "cache_policy": policy, "max_new_tokens": 6, "block_length": 8}
    with pytest.raises(ValueError, match=rf"NaN or infinite logits.* of row \[{row}\]"):
        model.generate(torch.tensor([[1], [2]]), **options)
    assert len(model.calls) == 1, "raised at once"
    assert model.generate(torch.tensor([[1], [2]]), **options)[:, 1:].tolist() == [[5] * 6] * 2


def test_the_row_number_is_that_of_the_call():
    """Also where earlier rows have left the batch; and NaN at a position that is not open hurts nobody."""
    cells = table((EOS, 0.9), *[(5, 0.9)] * 20)

    def script(call):
        logits = cells[call.position_ids].clone()
        if call.number == 2:
            logits[-1, -1] = torch.nan
        return logits

    model = Scripted(script)
    with pytest.raises(ValueError, match=r"row \[2\]"):
        model.generate(**padded([[1], [1, 1], [1, 1, 1]]), max_new_tokens=4, block_length=4)
    prompt_is_nan = cells.clone()
    prompt_is_nan[0] = torch.nan
    ids = Scripted(prompt_is_nan).generate(torch.tensor([[1]]), max_new_tokens=1)
    assert ids.tolist() == [[1, EOS]]


def test_infinite_logits():
    cells = table(*[(5, 0.9)] * 4)
    cells[2, 9] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinite logits"):
        Scripted(cells).generate(torch.tensor([[1]]), max_new_tokens=4)
    cells[2, 9] = -torch.inf
    assert Scripted(cells).generate(torch.tensor([[1]]), max_new_tokens=4).tolist() == [[1, 5, 5, 5, 5]]


def test_weights_of_nan():
    model = tiny_llada()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3] = torch.nan
    with pytest.raises(ValueError, match=r"row \[0, 1\]"):
        model.generate(ROWS, max_new_tokens=3)


def test_models_that_cannot_be_decoded():
    sizes = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "vocab_size": 64,
    }
    for model, reason in (
        (LlamaModel(LlamaConfig(**sizes)), "no output embeddings"),
        (
            T5ForConditionalGeneration(T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)),
            "no output embed",
        ),
        (BertModel(BertConfig(**sizes)), "no output embeddings"),
    ):
        with pytest.raises(ValueError, match=reason):
            attach(model)
    unknown = attach(GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=64, is_causal=False)))
    with pytest.raises(ValueError, match="no supported family.*`mask_token_id`, `logits_shift`, `attention`"):
        unknown.generate(IDS, max_new_tokens=2)
