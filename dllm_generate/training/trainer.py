"""A transformers `Trainer` whose loss is an objective of `dllm_generate.training.objectives`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback

from ..registry import require
from .base import Objective
from .data import Batch, ExampleBatches
from .optimizers import OPTIMIZERS, muon_with_adam


@dataclass
class _OneBatch:
    """Takes the only batch of each item; transformers saves the tokenizer that it finds here with every checkpoint."""

    tokenizer: PreTrainedTokenizerBase | None = None

    def __call__(self, batches: list[Batch]) -> dict[str, Batch]:
        return {"batch": batches[0]}


class _CountTokens(TrainerCallback):
    """Keeps the number of tokens that all processes have trained on in the state, which checkpoints hold."""

    def __init__(self, trainer: "DiffusionTrainer"):
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seen = torch.tensor(self.trainer.tokens, device=args.device)
        state.num_input_tokens_seen += int(self.trainer.accelerator.reduce(seen, "sum"))
        self.trainer.tokens = 0


class DiffusionTrainer(Trainer):
    """Trains any transformers model that takes a 4-D attention mask with any `Objective`.

    Everything that `Trainer` offers works: checkpoints, resuming, mixed precision, several processes, logging,
    callbacks. Batches, their noise and dropout depend on the number of the batch alone, so a run that was stopped and
    resumed goes on as if it had not been stopped. With several processes each takes every n-th batch.

    Args:
        objective: the loss.
        optimizer: `"muon"` for the matrices of the layers, with Adam for the rest; or `"adamw"`. Default `"muon"`.
        muon_lr: learning rate of Muon. Default 0.01. `args.learning_rate` is that of Adam and AdamW.
        tokenizer: is saved with every checkpoint; given as `processing_class`, it would change the model's config.
        **kwargs: as for `Trainer`; `train_dataset` is an `ExampleBatches`.

    Raises:
        ValueError: another optimizer or data set; processes that do not divide the batches of a step.

    Example:
        trainer = DiffusionTrainer(MaskedDiffusion(mask_id), model=model, args=arguments, train_dataset=batches)
        trainer.train(resume_from_checkpoint=True)
    """

    objective: Objective
    muon_lr: float

    def __init__(
        self,
        objective: Objective,
        optimizer: str = "muon",
        muon_lr: float = 0.01,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ):
        require(optimizer in OPTIMIZERS, "optimizer", optimizer, f"one of {list(OPTIMIZERS)}")
        super().__init__(data_collator=_OneBatch(tokenizer), **kwargs)
        self.objective, self.optimizer_name, self.muon_lr = objective, optimizer, muon_lr
        self.model_accepts_loss_kwargs = False
        self.tokens = 0
        self.add_callback(_CountTokens(self))

    def get_train_dataloader(self) -> DataLoader:
        """Batches in their order, made in this process: they cost far less than the forward."""
        data = self.train_dataset
        if not isinstance(data, ExampleBatches):
            raise ValueError(f"train_dataset must be an ExampleBatches, got {type(data).__name__}")
        per_step = self.args.gradient_accumulation_steps * self.args.world_size
        require(data.parts == per_step, "parts", data.parts,
                f"{per_step}: {self.args.gradient_accumulation_steps} forwards in each process")  # fmt: skip
        loader = DataLoader(data, sampler=SequentialSampler(data), collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Muon for the matrices and Adam for the rest, or AdamW as transformers makes it."""
        if self.optimizer_name == "adamw":
            return super().create_optimizer(model)
        if self.optimizer is None:
            self.optimizer = muon_with_adam(
                self.model,  # type: ignore[arg-type]
                self.muon_lr,
                self.args.learning_rate,
                weight_decay=self.args.weight_decay,
            )
        return self.optimizer

    def compute_loss(  # type: ignore[override]
        self, model: nn.Module, inputs: dict[str, Batch], **kwargs: Any
    ) -> Tensor:
        """Loss of one batch under noise that the batch's own seed determines."""
        batch = inputs["batch"]
        self.tokens += int(batch.real().sum())
        # Dropout draws from the global generators.
        torch.manual_seed(batch.seed)
        with self.compute_loss_context_manager():
            return self.objective(model, batch, torch.Generator().manual_seed(batch.seed))

    def floating_point_ops(self, inputs: dict[str, Batch]) -> int:  # type: ignore[override]
        """Not counted: the estimate of transformers assumes a dict of tensors."""
        return 0

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Loads the weights, whose names in the file may be the published ones: transformers' own would skip those."""
        model = self.model if model is None else model
        if not isinstance(model, PreTrainedModel):
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        saved = type(model).from_pretrained(resume_from_checkpoint, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
