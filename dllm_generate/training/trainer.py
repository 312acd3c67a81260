"""A transformers `Trainer` whose loss is an objective of `dllm_generate.training.objectives`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler
from transformers import Trainer

from .data import Batch, ExampleBatches
from .objectives import Objective
from .optimizers import muon_with_adam


def _first(batches: list[Batch]) -> dict[str, Batch]:
    return {"batch": batches[0]}


class DiffusionTrainer(Trainer):
    """Trains any transformers model that takes a 4-D attention mask with any `Objective`.

    Everything that `Trainer` offers works: checkpoints, resuming, mixed precision, logging, callbacks. Batches and
    their noise depend on the number of the batch alone, so a run that was stopped and resumed goes on as if it had not
    been stopped.

    Args:
        objective: the loss.
        muon_lr: learning rate of Muon, for the matrices of the layers. Default 0.01. `args.learning_rate` is Adam's.
        **kwargs: as for `Trainer`; `train_dataset` is an `ExampleBatches`.

    Example:
        trainer = DiffusionTrainer(MaskedDiffusion(mask_id), model=model, args=arguments, train_dataset=batches)
        trainer.train(resume_from_checkpoint=True)
    """

    objective: Objective
    muon_lr: float

    def __init__(self, objective: Objective, muon_lr: float = 0.01, **kwargs: Any):
        super().__init__(data_collator=_first, **kwargs)
        self.objective, self.muon_lr = objective, muon_lr
        self.model_accepts_loss_kwargs = False

    def get_train_dataloader(self) -> DataLoader:
        """Batches in their order, made in this process: they cost far less than the forward."""
        if not isinstance(self.train_dataset, ExampleBatches):
            raise ValueError(f"train_dataset must be an ExampleBatches, got {type(self.train_dataset).__name__}")
        loader = DataLoader(self.train_dataset, sampler=SequentialSampler(self.train_dataset), collate_fn=_first)
        return self.accelerator.prepare(loader)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Muon for the matrices, Adam for the rest."""
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
        with self.compute_loss_context_manager():
            return self.objective(model, batch, torch.Generator().manual_seed(batch.seed))

    def floating_point_ops(self, inputs: dict[str, Batch]) -> int:  # type: ignore[override]
        """Not counted: the estimate of transformers assumes a dict of tensors."""
        return 0
