"""From a recipe to what the trainer needs: model, adapter, arguments."""

import os
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments

from ..attaching import attach
from ..attention import check_backend
from ..bundled import load_as_it_is
from ..families import Family, family_of
from ..mixin import DiffusionGenerationMixin
from ..registry import require
from .recipe import Recipe


def load_model(recipe: Recipe) -> tuple[Any, PreTrainedTokenizerBase, Family | None]:
    """Loads what is trained.

    Returns:
        Model, tokenizer and family; no family where the objective does not ask for one.

    Raises:
        ValueError: a model whose attention takes no 4-D mask, or whose mask token is not known; a tokenizer without
            EOS; a `max_length` that the model has no positions for.
        OSError: a model that is not there.
    """
    model, tokenizer = load_as_it_is(
        recipe.model, dtype=recipe.dtype, device="cpu", trust_remote_code=recipe.trust_remote_code
    )
    check_backend(model.config._attn_implementation)
    require(tokenizer.eos_token_id is not None, "eos_token", None, "a token of the tokenizer")
    room = getattr(model.config, "max_position_embeddings", None) or recipe.max_length
    require(recipe.max_length <= room, "max_length", recipe.max_length, f"at most {room}, the positions of the model")
    if not recipe.needs_family:
        return model, tokenizer, None
    family = family_of(model, recipe.family, tokenizer)
    if not isinstance(model, DiffusionGenerationMixin):
        # A causal model that learns to denoise; the file says so from now on.
        model.config.is_causal = False
        attach(model)
    return model, tokenizer, family


def tell_decoding(model: Any, recipe: Recipe, attention: str | None) -> None:
    """Writes into the model's generation config what decoding has to know of a model that is trained in this way.

    Args:
        model: before adapters are added.
        recipe: its `family` are facts that the model itself does not tell.
        attention: that decoding has to use from now on; None if the model's family says it.
    """
    config = model.generation_config
    for key, value in {**recipe.family, **({} if attention is None else {"attention": attention})}.items():
        setattr(config, key, value)
    if config.do_sample is None:
        # Pipelines of transformers sample unless the file says otherwise.
        config.do_sample = False


def adapted(model: Any, recipe: Recipe) -> Any:
    """The model itself, or with new adapters, which the recipe's seed determines.

    Raises:
        ImportError: if peft is not installed.
        ValueError: for targets that the model has not.
    """
    if recipe.lora is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("`lora` needs the library peft: pip install 'dllm_generate[train]'") from error
    torch.manual_seed(recipe.seed)
    lora = recipe.lora
    targets = lora.targets if isinstance(lora.targets, list) else []
    names = [f".{name}" for name, _ in model.named_modules()]
    # peft leaves out those that it does not find beside others.
    unknown = [target for target in targets if not any(name.endswith(f".{target}") for name in names)]
    require(not unknown, "lora.targets", unknown, "names of layers of the model")
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.targets, task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def world_size() -> int:
    """Number of processes that the launcher has started."""
    return int(os.environ.get("WORLD_SIZE", 1))


def arguments_of(recipe: Recipe) -> TrainingArguments:
    """The recipe in transformers' words; `parts` counts over all processes."""
    stable = {"num_decay_steps": int(recipe.decay * recipe.steps), "decay_type": "linear", "min_lr_ratio": 0.01}
    arguments = TrainingArguments(
        output_dir=recipe.output,
        max_steps=recipe.steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=recipe.parts // world_size(),
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        lr_scheduler_type="constant_with_warmup" if recipe.schedule == "constant" else recipe.schedule,
        lr_scheduler_kwargs=stable if recipe.schedule == "warmup_stable_decay" else {},
        warmup_steps=recipe.warmup,
        bf16=recipe.bf16,
        activation_checkpointing=recipe.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=not torch.accelerator.is_available(),
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,
        save_steps=recipe.save_every,
        save_total_limit=recipe.keep,
        report_to="none",
        disable_tqdm=True,
        seed=recipe.seed,
    )
    # Replicas in threads would split every argument of a forward by rows, and not all have rows.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
