"""A tiny DiffusionGemma, and what imitates the random numbers of its own `generate`."""

import dataclasses

import torch
from models import EOS, PAD, VOCABULARY
from torch import nn
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

from dllm_generate import noising
from dllm_generate.decoders.renoise import RenoiseDecoder
from dllm_generate.schedules.block_diffusion import BlockDiffusionSchedule

CANVAS, WINDOW = 8, 6
# Thresholds at which this model ends some blocks early, and others not.
SAMPLER = {"t_min": 0.2, "t_max": 0.5, "stability_threshold": 1, "confidence_threshold": 0.6}


def tiny_gemma(seed: int = 0, **text) -> DiffusionGemmaForBlockDiffusion:
    """Random weights: a sliding and a full layer, experts, different heads, and a head that is sure of some tokens."""
    torch.manual_seed(seed)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    values = {
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
        **{"global_head_dim": 16, "num_global_key_value_heads": 1, "sliding_window": WINDOW},
        **{"layer_types": ["sliding_attention", "full_attention", "full_attention"], "max_position_embeddings": 256},
        **{"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 2},
    }
    vision = {**heads, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "global_head_dim": 8}
    ids = {"image_token_id": 59, "boi_token_id": 58, "eoi_token_id": 57}
    config = DiffusionGemmaConfig(
        text_config={**values, **heads, **experts, **text}, vision_config=vision, canvas_length=CANVAS, **ids
    )
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "vision" not in name:
            nn.init.normal_(parameter, std=0.6 if "embed" in name else 0.1)
    # The scales of the layers are no parameters, and not shared by encoder and decoder.
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.fill_(0.7 if "encoder" in name else 0.9)
    return model


@dataclasses.dataclass(frozen=True)
class Multinomial(RenoiseDecoder):
    """Draws for all rows of the batch from torch's global generator, as the published sampler does.

    Args:
        batch: number of rows, finished ones included.
    """

    batch: int = 1

    def draw(self, scaled, state):
        probabilities = torch.ones(self.batch, *scaled.shape[1:]).index_copy_(0, state.noise.row, scaled.softmax(-1))
        return torch.multinomial(probabilities.flatten(0, 1), 1).view(self.batch, -1)[state.noise.row]


@dataclasses.dataclass(frozen=True)
class Lockstep(BlockDiffusionSchedule):
    """All rows leave a block together; then random tokens for the next one are drawn."""

    seen: list[int] = dataclasses.field(default_factory=lambda: [0])

    def __deepcopy__(self, memo):
        return self

    def active(self, canvas):
        blocks = super().active(canvas)
        least = blocks.index.masked_fill(canvas.finished[:, None], 99).amin()
        if self.seen[0] < int(least) < 99:
            self.seen[0] = int(least)
            columns = blocks.columns[:, 0]
            canvas.input_ids.scatter_(1, columns, torch.randint(VOCABULARY, columns.shape))
        live = blocks.live & (blocks.index == least)
        return dataclasses.replace(blocks, live=live, force=live)


def published_order(monkeypatch, seed: int, batch: int) -> None:
    """Lets noise come from the global generator: for the block in work when it begins, and behind every step."""

    def noise(run, numbers):
        if numbers.positions.shape[1] == CANVAS:
            return torch.randint(VOCABULARY, (batch, CANVAS))[numbers.row]
        torch.manual_seed(seed)
        tokens = torch.zeros_like(run.canvas.input_ids)
        first = run.canvas.first_open[:, None] + torch.arange(CANVAS)
        return tokens.scatter_(1, first, torch.randint(VOCABULARY, first.shape))

    monkeypatch.setattr(noising, "_noise", noise)
