"""What families with a mixture of experts have in common."""

from typing import Any

from torch import nn
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, WeightRenaming

from dllm_generate.families.native import assemble

# Published checkpoints hold three matrices per expert, transformers' layers two for all experts of a layer.
FUSED: list[WeightConverter | WeightRenaming] = [
    WeightConverter(
        source_patterns=["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"],
        target_patterns="mlp.experts.gate_up_proj",
        operations=[MergeModulelist(dim=0), Concatenate(dim=1)],
    ),
    WeightConverter(
        source_patterns="mlp.experts.*.down_proj.weight",
        target_patterns="mlp.experts.down_proj",
        operations=[MergeModulelist(dim=0)],
    ),
]


class FusedExperts:
    """Mixin of body and model whose experts are transformers' own, with every `experts_implementation`."""

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        # transformers looks for its decorator in the source of the module that defines the class, where a subclass
        # from elsewhere has none, and would silently loop over the experts, with a host read for each.
        return True


def assemble_with_router(model: Any, stock: type, body: type[nn.Module], config: Any) -> None:
    """As [`assemble`], for a `stock` class that balances its experts while it is trained."""
    assemble(model, stock, body, config)
    model.router_aux_loss_coef = config.router_aux_loss_coef
    model.num_experts = config.num_experts
    model.num_experts_per_tok = config.num_experts_per_tok
