"""What makes a native class of a family: an own body under transformers' head, and the names by which it is found."""

from typing import Any

from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.conversion_mapping import register_checkpoint_conversion_mapping

from dllm_generate.families.base import Family, register_family


def assemble(model: Any, stock: type, body: type[nn.Module], config: Any) -> None:
    """Does in the constructor of `model` what that of `stock` would do, with another body.

    Args:
        model: under construction; derives from `stock`.
        stock: a causal-LM class of transformers, whose constructor would build a stock body.
        body: class of the body.
        config: of both.
    """
    super(stock, model).__init__(config)
    model.model = body(config)
    model.vocab_size = config.vocab_size
    model.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    model.post_init()


def register_native(
    family: Family, config_class: Any, model_class: Any, published: str, conversion: list[Any] | None = None
) -> None:
    """Makes a family known to decoding and to transformers' Auto classes.

    Args:
        family, config_class, model_class: what belongs together.
        published: class name in the config.json of published checkpoints.
        conversion: renamings and converters from the published tensor names.
    """
    register_family(family, config_class, architectures=(published, model_class.__name__), model_class=model_class)
    if conversion is not None:
        register_checkpoint_conversion_mapping(config_class.model_type, conversion, overwrite=True)
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    # Published model cards load their models through AutoModel, and expect logits.
    for auto in (AutoModel, AutoModelForCausalLM):
        auto.register(config_class, model_class, exist_ok=True)
