"""Small models for the tests: a random LLaDA, and a model whose logits are written by hand."""

import contextlib
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from dllm_generate import DiffusionGenerationMixin, LLaDAConfig, LLaDAForMaskedDiffusion

VOCABULARY, MASK, EOS, EOT, PAD = 64, 63, 62, 61, 60
SHIFTED = {"mask_token_id": MASK, "logits_shift": True, "attention": "bidirectional"}


def tiny_llada(seed: int = 0, vocabulary: int = VOCABULARY, **config) -> LLaDAForMaskedDiffusion:
    """Random weights, wide enough that every token depends on all others and that no choice is near a tie."""
    values = {"mask_token_id": MASK, "eos_token_id": EOS, "pad_token_id": PAD, "max_position_embeddings": 512}
    torch.manual_seed(seed)
    model = LLaDAForMaskedDiffusion(
        LLaDAConfig(
            vocab_size=vocabulary, d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, mlp_hidden_size=64,
            **{**values, **config},
        )
    ).eval()  # fmt: skip
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.35)
    # An unused token of a random model is as likely as any other, so EOS would come after 30 tokens or so.
    nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


class ScriptedConfig(PreTrainedConfig):
    """Config of [`Scripted`]."""

    model_type = "scripted"

    def __init__(self, vocab_size: int = VOCABULARY, max_position_embeddings: int = 512, **kwargs):
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        super().__init__(**kwargs)


@dataclasses.dataclass
class Call:
    """One forward: its number, and what the model was given `(n, W)`; embeddings `(n, W, d)` instead of ids."""

    number: int
    input_ids: torch.Tensor | None
    position_ids: torch.Tensor
    attention_mask: torch.Tensor
    inputs_embeds: torch.Tensor | None = None


class _Body(nn.Module):
    def __init__(self, script):
        super().__init__()
        self.script = script
        self.calls: list[Call] = []

    def forward(self, input_ids=None, position_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        call = Call(len(self.calls), input_ids, position_ids, attention_mask, inputs_embeds)
        self.calls.append(call)
        assert call.number < 1000, "decoding does not end"
        return SimpleNamespace(last_hidden_state=self.script(call))


class Scripted(DiffusionGenerationMixin, PreTrainedModel):
    """A model whose logits come from a table `(positions, V)`, or from a function of the [`Call`]."""

    config_class = ScriptedConfig
    _supports_sdpa = True

    def __init__(self, script: torch.Tensor | Callable[[Call], torch.Tensor], **config):
        if isinstance(script, torch.Tensor):
            config = {"vocab_size": script.shape[-1], **config}
            table, script = script, lambda call: table[call.position_ids.clamp(max=len(table) - 1)]
        super().__init__(ScriptedConfig(**config))
        self.embeddings, self.body, self.head = nn.Embedding(self.config.vocab_size, 1), _Body(script), nn.Identity()
        facts = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional"}
        for name, value in {**facts, "eos_token_id": EOS, "pad_token_id": PAD}.items():
            setattr(self.generation_config, name, value)

    @property
    def calls(self) -> list[Call]:
        return self.body.calls

    def get_decoder(self):
        return self.body

    def get_input_embeddings(self):
        return self.embeddings

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        raise AssertionError("decoding runs body and head on their own")


def row_of_logits(token: int, confidence: float, vocabulary: int = VOCABULARY, mask: int = MASK) -> torch.Tensor:
    """Logits `(V,)` that give `token` the probability `confidence`, and all others but the mask the rest evenly."""
    rest = torch.full((vocabulary,), (1 - confidence) / (vocabulary - 2))
    rest[token] = confidence
    rest = rest.log()
    rest[mask] = -1e4
    return rest


def table(*cells: tuple[int, float], prompt: int = 1, **kwargs) -> torch.Tensor:
    """Logits `(prompt + n, V)` that say (token, confidence) at the position of each cell behind a prompt."""
    blank = [row_of_logits(0, 0.5, **kwargs)] * prompt
    return torch.stack(blank + [row_of_logits(token, confidence, **kwargs) for token, confidence in cells])


@contextlib.contextmanager
def counted_forwards(model):
    """Collects the shape `(n, W)` of every forward of the body."""
    shapes: list[tuple[int, ...]] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["position_ids"].shape)), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        hook.remove()


def padded(prompts: list[list[int]], side: str = "left", pad: int = PAD) -> dict[str, torch.Tensor]:
    """Prompts as a batch, with their mask."""
    width = max(map(len, prompts))
    fill = [[pad] * (width - len(p)) for p in prompts]
    ids = [f + p if side == "left" else p + f for f, p in zip(fill, prompts)]
    lead = [
        [0] * len(f) + [1] * len(p) if side == "left" else [1] * len(p) + [0] * len(f) for f, p in zip(fill, prompts)
    ]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(lead)}


def byte_tokenizer(merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """One token per byte and per merge, then eos, pad and mask."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in merges]
    core = Tokenizer(BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", mask_token="<mask>", padding_side="left"
    )


def speller(text: str, tokenizer, prompt: int = 1, confidence: float = 0.99) -> Scripted:
    """A model that writes `text` and then EOS, whatever the prompt."""
    tokens = tokenizer.encode(text, add_special_tokens=False) + [tokenizer.eos_token_id] * 8
    cells = [(token, confidence) for token in tokens]
    model = Scripted(table(*cells, prompt=prompt, vocabulary=len(tokenizer), mask=tokenizer.mask_token_id))
    for name in ("mask_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, getattr(tokenizer, name))
    return model
