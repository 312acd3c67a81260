"""What a finished run leaves: a model folder laid out like the published one, or an adapter, or both."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from .recipe import Recipe

MODEL, ADAPTER = "final", "adapter"


def save_results(
    model: Any, tokenizer: PreTrainedTokenizerBase, recipe: Recipe, output: Path
) -> tuple[Any, list[Path]]:
    """Writes the results as safetensors, each with tokenizer and generation config.

    Args:
        model: the trained model; with LoRA, the PEFT model around it.
        tokenizer: of the model.
        recipe: says whether there is an adapter, and whether it is merged.
        output: folder of the run.

    Returns:
        The model, which is the merged one where the recipe asks for a merge, and the folders that were written.
    """
    written = []
    if recipe.lora is not None:
        _save(model, tokenizer, output / ADAPTER)
        written.append(output / ADAPTER)
        # A PEFT model saves none.
        model.generation_config.save_pretrained(output / ADAPTER)
        if not recipe.lora.merge:
            return model, written
        model = model.merge_and_unload()
    _save(model, tokenizer, output / MODEL)
    return model, [*written, output / MODEL]


def _save(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
