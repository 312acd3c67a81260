"""Terms of losses at the cells that are asked for."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Corrupted, logits_of


def asked_logits(model: nn.Module, seen: Corrupted) -> Tensor:
    """One forward, and the logits (n, V) in float32 of the n cells with a weight above 0, row by row."""
    asked = seen.weights > 0
    columns = asked.any(0).nonzero()[:, 0]
    logits = logits_of(model, seen, columns)
    return logits[asked[:, columns].to(logits.device)].float()


def asked(values: Tensor, seen: Corrupted, like: Tensor) -> Tensor:
    """Those of the values (B, S) that belong to the logits (n, V) of `asked_logits`, on their device."""
    return values[seen.weights > 0].to(like.device)


def distillation_loss(student: Tensor, wanted: Tensor, weights: Tensor, temperature: float = 1.0) -> Tensor:
    """Weighted sum of cross entropies.

    Args:
        student: (n, V) logits.
        wanted: (n, V) logits of the teacher, or (n,) ids.
        weights: (n,) weight of each.
        temperature: of both distributions; the loss is multiplied by its square, which keeps the size of the gradient
            (arXiv 1503.02531). Ids have none. Default 1.0.

    Returns:
        Scalar.
    """
    if wanted.dim() == 2:
        soft = (wanted / temperature).softmax(-1)
        losses = F.cross_entropy(student / temperature, soft, reduction="none") * temperature**2
    else:
        losses = F.cross_entropy(student, wanted, reduction="none")
    return (losses * weights).sum()


def certainty_loss(logits: Tensor, labels: Tensor, weights: Tensor, temperature: float = 0.5) -> Tensor:
    """Mean entropy of the predictions that are right (certainty forcing, dParallel, arXiv 2509.26488).

    Args:
        logits: (n, V).
        labels: (n,) right ids.
        weights: (n,) weights of the mean; their sum is a factor in front of it.
        temperature: of the softmax in the entropy. Default 0.5, as published.

    Returns:
        Scalar, in nats; 0 where no prediction is right.
    """
    right = weights * (logits.argmax(-1) == labels)
    entropy = torch.special.entr((logits / temperature).softmax(-1)).sum(-1)
    return (entropy * right).sum() * (weights.sum() / right.sum().clamp(min=1e-12))
