"""A whole training run: from a recipe to a folder with the trained model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PrinterCallback, TrainerCallback

from ..registry import require
from .checkpoints import METRICS, RECIPE, find_checkpoint
from .metrics import MetricsFile, ProgressBar, read_metrics
from .preparing import adapted, arguments_of, load_model, tell_decoding, world_size
from .recipe import Recipe
from .saving import save_results
from .trainer import DiffusionTrainer


@dataclass(frozen=True)
class Training:
    """A finished run.

    Attributes:
        output: its folder.
        model: the trained model; with LoRA a PEFT model, unless it was merged.
        tokenizer: of the model.
        metrics: the lines of metrics.jsonl.
        written: folders of the results; none but in the first process.
    """

    output: Path
    model: Any
    tokenizer: PreTrainedTokenizerBase
    metrics: list[dict[str, Any]]
    written: list[Path]


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    resume: bool = False,
    progress: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    **changes: Any,
) -> Training:
    """Trains a model as a recipe says.

    Args:
        recipe: a [`Recipe`], the path of a .yaml or .json file, or a dict.
        resume: go on behind the last whole checkpoint in the recipe's `output`, if there is one.
        progress: show a progress bar.
        callbacks: of transformers' `Trainer`.
        changes: keys of the recipe that replace its values.

    Returns:
        The trained model and what was written.

    Raises:
        ValueError: a key or value that is not allowed, an `output` that holds another run, data that cannot be used;
            all before the first step, and what does not depend on the model before it is loaded.
        ImportError: LoRA without peft.
        OSError: a file or model that is not there.

    Example:
        >>> training = train({"output": "runs/mine", "data": "chat.jsonl", "lora": {"r": 8}, "steps": 500})
    """
    recipe = Recipe.read(recipe, **changes)
    output, source = Path(recipe.output), recipe.make_source()
    checkpoint = find_checkpoint(recipe, resume)
    world = world_size()
    require(recipe.parts % world == 0, "parts", recipe.parts, f"a multiple of {world}, the number of processes")
    source.read()
    model, tokenizer, family = load_model(recipe)
    source.validate(family, model.get_input_embeddings().weight.shape[0])
    objective = recipe.make_objective(family)
    tell_decoding(model, recipe, objective.result)
    sizes = {key: getattr(recipe, key) for key in ("steps", "rows", "parts", "seed", "max_length")}
    batches = source.batches(tokenizer, **sizes)
    trainer = DiffusionTrainer(
        objective,
        optimizer=recipe.optimizer,
        muon_lr=recipe.muon_learning_rate,
        tokenizer=tokenizer,
        model=adapted(model, recipe),
        args=arguments_of(recipe),
        train_dataset=batches,
        callbacks=[MetricsFile(output / METRICS), *([ProgressBar()] if progress else []), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    if recipe.compile:
        trainer.model.compile(dynamic=True)  # type: ignore[union-attr]
    first = trainer.is_world_process_zero()
    if first:
        output.mkdir(parents=True, exist_ok=True)
        recipe.save(output / RECIPE)
    trainer.train(resume_from_checkpoint=checkpoint)
    trained: Any = trainer.model
    written: list[Path] = []
    if first:
        trained, written = save_results(trained, tokenizer, recipe, output)
    trainer.accelerator.wait_for_everyone()
    return Training(output, trained.eval(), tokenizer, read_metrics(output / METRICS), written)
