"""What a folder holds, told from its config and the headers of its weights."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    CONFIG_NAME,
    SAFE_WEIGHTS_NAME,
)

from ..registry import is_int
from .deferred import Deferred
from .files import WeightFiles, read_json, weight_files
from .models import build, existing_folder, find_family, read_config, value_of
from .names import to_native
from .token_ids import token_ids


@dataclass
class Report:
    """What `inspect_checkpoint` found.

    Attributes:
        folder: path.
        kind: `"model"` or `"adapter"`.
        model_type, architectures: as in config.json.
        family: name of the family; None for an adapter and an unknown one.
        options_needed: what to do to run a model of an unknown family; None for a known one.
        layout: `"published"`, `"native"`, `"mixed"`, or `"one"` where both have the same tensor names; None where the
            names were not checked.
        sharded: whether an index says where the tensors are.
        files: names of the weight files.
        dtypes: name of a dtype -> `{"tensors", "parameters", "bytes"}`.
        tensors, parameters, bytes: of all weights.
        token_ids: `mask_token_id`, `eos_token_id` and `pad_token_id`; None where nothing says.
        attention, logits_shift, block_length: of the family; the block length is None where it is free.
        presets: names of the presets.
        rules: renaming rule -> number of stored names that it changes on loading.
        renamed: stored name -> names in the model.
        missing: tensors that the model needs and that are not there.
        unexpected: stored tensors that the model has no place for.
        mismatched: name -> stored shape and needed shape.
        adapter: of an adapter: `base_model`, `peft_type`, `r`, `lora_alpha`, `target_modules`.
        notes: what else is worth knowing.
    """

    folder: str
    kind: str = "model"
    model_type: str | None = None
    architectures: list[str] = field(default_factory=list)
    family: str | None = None
    options_needed: str | None = None
    layout: str | None = None
    sharded: bool = False
    files: list[str] = field(default_factory=list)
    dtypes: dict[str, dict[str, int]] = field(default_factory=dict)
    tensors: int = 0
    parameters: int = 0
    bytes: int = 0
    token_ids: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    logits_shift: bool | None = None
    block_length: int | None = None
    presets: list[str] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=dict)
    renamed: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    adapter: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """False if a tensor is missing or has another shape than the model's."""
        return not self.missing and not self.mismatched

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {**asdict(self), "complete": self.complete}


def inspect_checkpoint(folder: str | Path) -> Report:
    """Tells what a folder holds. Reads config files and headers, no weights.

    Args:
        folder: a local folder with a model or a LoRA adapter.

    Raises:
        FileNotFoundError: without such a folder, a config.json, weights, or a shard that the index names.
        ValueError: for weights that are no safetensors, a damaged file, a config of which no model can be built, a
            generation config or tokenizer file that is no JSON object, and token ids that are none.

    Example:
        >>> from dllm_generate.bundled import bundled_model
        >>> inspect_checkpoint(bundled_model()).family
        'llada'
    """
    path = existing_folder(folder)
    report = Report(str(path))
    if (path / ADAPTER_CONFIG_NAME).is_file() and not (path / CONFIG_NAME).is_file():
        return _adapter(path, report)
    config = read_config(path)
    report.model_type = read_json(path / CONFIG_NAME)["model_type"]
    report.architectures = list(getattr(config, "architectures", None) or [])
    with WeightFiles(path, weight_files(path)) as weights:
        _count(report, weights.tensors.values())
        report.files, report.sharded = weights.names, weights.names != [SAFE_WEIGHTS_NAME]
        model = build(path, config)
        _describe(report, path, config, model)
        if getattr(config, "quantization_config", None) is not None:
            report.notes.append("The weights are quantized: their names were not held against the model.")
        elif model is None:
            report.notes.append("transformers has no such model installed: the names of the weights were not checked.")
        else:
            found = to_native(model, weights.tensors)
            report.layout, report.rules, report.renamed = found.layout, dict(found.rules), found.renamed
            report.missing, report.unexpected, report.mismatched = found.missing, found.unexpected, found.mismatched
            if found.unjoinable:
                names = ", ".join(found.unjoinable)
                report.notes.append(f"Of a dtype that cannot be joined with that of the tensors beside it: {names}.")
    return report


def _count(report: Report, tensors: Iterable[Deferred]) -> None:
    for tensor in tensors:
        name = str(tensor.dtype).removeprefix("torch.")
        of_dtype = report.dtypes.setdefault(name, {"tensors": 0, "parameters": 0, "bytes": 0})
        for key, value in (("tensors", 1), ("parameters", tensor.numel()), ("bytes", tensor.nbytes)):
            of_dtype[key] += value
    report.tensors, report.parameters, report.bytes = (
        sum(counts[key] for counts in report.dtypes.values()) for key in ("tensors", "parameters", "bytes")
    )


def _describe(report: Report, path: Path, config: Any, model: Any) -> None:
    """Fills in what decoding knows of the model."""
    family = None
    try:
        family = find_family(config, model)
    except ValueError as error:
        report.options_needed = str(error)
    masked = family is None or family.noise == "mask"
    report.token_ids = token_ids(path, config, ask_tokenizer=masked)
    if masked:
        _note_mask(report, value_of(config, "vocab_size"))
    if family is None:
        return
    report.family, report.attention, report.logits_shift = family.name, family.attention, family.logits_shift
    report.block_length, report.presets = family.block_length, list(family.presets)
    if isinstance(config, SimpleNamespace):
        report.notes.append(f"Its architecture is that of {family.name}, but its `model_type` is of no native class.")


def _note_mask(report: Report, rows: Any) -> None:
    mask = report.token_ids["mask_token_id"]
    if mask is None:
        report.notes.append("No mask token: give `mask_token_id` to `generate`.")
    elif is_int(rows) and not 0 <= mask < rows:
        report.notes.append(f"`mask_token_id` is {mask}, but the model has {rows} token embeddings.")


def _adapter(path: Path, report: Report) -> Report:
    values = read_json(path / ADAPTER_CONFIG_NAME)
    report.kind = "adapter"
    names = ("peft_type", "r", "lora_alpha", "target_modules")
    report.adapter = {"base_model": values.get("base_model_name_or_path"), **{name: values.get(name) for name in names}}
    targets = values.get("target_modules")
    listed = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    if not (targets is None or isinstance(targets, str) or listed):
        allowed = "text or a list of names"
        raise ValueError(
            f"{ADAPTER_CONFIG_NAME} of {str(path)!r}: `target_modules` is {targets!r}, but must be {allowed}."
        )
    if not (path / ADAPTER_SAFE_WEIGHTS_NAME).is_file():
        report.missing = [ADAPTER_SAFE_WEIGHTS_NAME]
        return report
    with WeightFiles(path, [ADAPTER_SAFE_WEIGHTS_NAME]) as weights:
        _count(report, weights.tensors.values())
        report.files = weights.names
    return report
