"""How is a model called, and is it what decoding relies on? Asked once, when it is attached by hand."""

import contextlib
import dataclasses
import itertools
import logging
from typing import Any

import torch

from .backbone import Backbone
from .caches import DiffusionCache
from .families import known_family
from .traits import Traits, remember, traits_of

logger = logging.getLogger("dllm_generate")
# Layers whose masks decoding can build.
LAYERS = {"full_attention", "sliding_attention"}


class Unfit(ValueError):
    """Why a model cannot be decoded."""


@torch.no_grad()
def check_model(model: Any) -> None:
    """Runs a few forwards of up to four tokens, and keeps what they show with the model, see [`Traits`].

    Where a family says how its models run, there is nothing to find out; and a model without weights is not run.

    Raises:
        ValueError: if tokens that the attention mask leaves out have an influence, so that padding would count as text;
            if a position does not see what stands behind it, whatever the mask says; or if no way to call it gives the
            logits of a plain call.
    """
    if traits_of(model).probed:
        return
    family = known_family(model)
    if family is not None and family.backbone is not None:
        family.backbone(model)
        return
    if any(parameter.is_meta for parameter in model.parameters()) and not hasattr(model, "hf_device_map"):
        Backbone(model)
        return
    with _in_eval_mode(model):
        remember(model, dataclasses.replace(_Probe(model).traits(), probed=True))


class _Probe:
    """Forwards on four tokens of the vocabulary."""

    def __init__(self, model: Any):
        self.model, self.name = model, type(model).__name__
        if model.config.is_encoder_decoder:
            raise Unfit(f"{self.name} has no output embeddings on top of a base model to decode with.")
        weight = model.get_input_embeddings().weight
        self.device = _device_of(model.get_input_embeddings())
        # Far apart, and no padding: neighbours at the ends of a vocabulary may be unused, and equal.
        self.padding = getattr(model.config.get_text_config(), "pad_token_id", None)
        usable = [token for token in range(weight.shape[0]) if token != self.padding]
        self.ids = [usable[len(usable) * part // 6] for part in (1, 2, 3, 4)]
        self.other = usable[len(usable) * 5 // 6]
        self.small = 1e-4 if model.dtype in (torch.float32, torch.float64) else 1e-2

    def traits(self) -> Traits:
        """Tries the ways to call a model, the best one first."""
        layers = self._layers()
        plain = self._plain(self.ids)
        if 2 * plain.shape[-1] < self.model.get_input_embeddings().weight.shape[0]:
            raise Unfit(f"{self.name} has no output embeddings: what it gives are no logits of its tokens.")
        causal = self._is_equal(plain[:3], self._plain([*self.ids[:3], self.other])[:3])
        if causal and getattr(self.model.config.get_text_config(), "is_causal", None) is not False:
            # Whoever names the attention by hand may know better: weights do not tell.
            logger.warning(
                f"A plain call of {self.name} attends to earlier positions only. It is decoded with the attention that "
                "the option `attention` names. If it was trained for that, `model.config.is_causal = False` says so "
                "and is saved with it; if not, expect no sense."
            )
        # Two calls of more than one token can only be compared if both attend in both directions.
        self.calls = [(self.ids[:1], self._plain(self.ids[:1]))] + ([] if causal else [(self.ids, plain)])
        unfit, failed = [], []
        for head, masks, own in itertools.product(("embeddings", "whole"), ("grid", "keys", "flags"), (False, True)):
            found = Traits(head=head, masks=masks, own_positions=own, takes_cache=False, **layers)
            try:
                return self._with_cache(self._checked(found))
            except Unfit as reason:
                unfit.append(reason)
            # Whatever a forward raises: this is not the way to call it.
            except Exception as error:
                failed.append(Unfit(f"{self.name} fails on what decoding passes to it: {error}"))
        raise unfit[0] if unfit else failed[-1]

    def _layers(self) -> dict[str, Any]:
        """Kinds of layers that want masks of their own."""
        config = self.model.config.get_text_config()
        kinds, window = set(getattr(config, "layer_types", None) or ()), getattr(config, "sliding_window", None)
        if kinds - LAYERS:
            raise Unfit(f"{self.name} has layers of the kinds {sorted(kinds - LAYERS)}: decoding cannot mask them.")
        if not window or kinds == {"full_attention"}:
            return {}
        return {"window": window, "layered": bool(kinds)}

    def _checked(self, traits: Traits) -> Traits:
        """Returns `traits` with head and positions. Raises Unfit where a forward does not do what decoding wants."""
        row, places, other = self.ids, [0, 1, 2, 3], [*self.ids[:3], self.other]
        seen, changed = self._hidden(traits, row), self._hidden(traits, other)
        hidden, leaked = (self._hidden(traits, ids, seen=3) for ids in (row, other))
        effect = (seen - changed)[:3].abs().max()
        if (hidden - leaked)[:3].abs().max() > 10 * self.small * effect and not self._is_equal(hidden[:3], leaked[:3]):
            raise Unfit(
                f"{self.name} ignores `attention_mask`, or mixes neighbours whatever it says: in a batch, padding "
                "would be read as text."
            )
        if self._is_equal(seen[0], changed[0]):
            raise Unfit(
                f"{self.name} attends to earlier positions only, whatever `attention_mask` says: it cannot denoise."
            )
        if not self._is_close(hidden[:3], self._hidden(traits, row[:3])):
            raise Unfit(f"{self.name} makes something else of a text that has padding behind it.")
        if not traits.own_positions and not self._is_close(self._hidden(traits, row[::-1], places[::-1]).flip(0), seen):
            raise Unfit(f"{self.name} does not go by the `position_ids` that it is given.")
        return self._with_head(traits)

    def _with_head(self, traits: Traits) -> Traits:
        """Finds head and first position that give the logits of a plain call."""
        firsts = (0,) if traits.own_positions or self.padding is None else (0, self.padding + 1)
        heads = ("embeddings", "module") if traits.head == "embeddings" else ("whole",)
        best, least = None, float("inf")
        for first, head in itertools.product(firsts, heads):
            found = dataclasses.replace(traits, head=head, first_position=first)
            # Whatever a forward raises: there is no such position, or no such head.
            with contextlib.suppress(Exception):
                difference = self._difference(found)
                if difference < least:
                    best, least = found, difference
        if best is None or least > 10 * self.small:
            raise Unfit(
                f"{self.name} does not give the logits of a plain call under the masks and positions of decoding."
            )
        return best if best.head == "whole" else dataclasses.replace(best, head=self._cheapest_head(best))

    def _cheapest_head(self, traits: Traits) -> str:
        """`"embeddings"` if the model's forward does nothing else to hidden states, however large they are."""
        large, logits = 50 * self._hidden(traits, self.ids)[None], {}
        for head in ("embeddings", "module"):
            # Whatever it raises: there is no such head.
            with contextlib.suppress(Exception):
                logits[head] = Backbone(self.model, dataclasses.replace(traits, head=head)).scores(large)
        if len(logits) < 2:
            return traits.head
        return "embeddings" if self._is_close(*logits.values()) else "module"

    def _difference(self, traits: Traits) -> float:
        """Largest difference of logits to those of plain calls, in units of the largest logit."""
        scores = Backbone(self.model, traits).scores
        return max(self._distance(scores(self._hidden(traits, ids)[None])[0], plain) for ids, plain in self.calls)

    def _with_cache(self, traits: Traits) -> Traits:
        """Whether a window that is computed anew equals the whole: only if the rest is read from the cache."""
        if not traits.per_query or traits.head == "whole" or traits.window:
            return traits
        found, cache = dataclasses.replace(traits, takes_cache=True), DiffusionCache(1, 5)
        slots = torch.arange(1, 5, device=self.device)[None]
        try:
            cache.seek(slots)
            whole = self._hidden(found, self.ids, cache=cache)
            cache.seek(slots[:, 1:3])
            part = self._hidden(found, self.ids[1:3], [1, 2], cache=cache)
        # Whatever a forward raises: it takes no such cache.
        except Exception:
            return traits
        written = bool(cache.layers) and cache.get_seq_length() > 0
        exact = self._is_close(whole, self._hidden(traits, self.ids)) and self._is_close(part, whole[1:3])
        return found if written and exact else traits

    def _hidden(
        self, traits: Traits, ids: list[int], places: list[int] | None = None, *, seen: int = 4, cache: Any = None
    ) -> torch.Tensor:
        """Hidden states `(n, d)` of a text of which the first `seen` tokens count."""
        tensor = lambda values: torch.tensor([values], device=self.device)
        visible = [place < seen for place in range(len(ids))] if cache is None else [False, True, True, True, True]
        positions = list(range(len(ids))) if places is None else places
        return Backbone(self.model, traits).hidden_states(tensor(ids), tensor(positions), tensor(visible), cache)[0]

    def _plain(self, ids: list[int]) -> torch.Tensor:
        try:
            output = self.model(input_ids=torch.tensor([ids], device=self.device))
        # Whatever it raises.
        except Exception as error:
            raise Unfit(f"A plain call of {self.name} fails: {error}") from error
        logits = getattr(output, "logits", None)
        logits = output if isinstance(output, torch.Tensor) else output[0] if logits is None else logits
        return logits[0].float()

    def _is_close(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return self._distance(one, other) <= 10 * self.small

    def _is_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """But for rounding: the experts of a model take the tokens of a forward together."""
        return self._distance(one, other) <= self.small * 0.1

    @staticmethod
    def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
        """The largest difference, in units of the largest value."""
        one, other = one.float(), other.float()
        return float((one - other).abs().max() / other.abs().max())


def _device_of(embeddings: Any) -> torch.device:
    """Where token ids have to lie, also while the table itself is offloaded."""
    if not embeddings.weight.is_meta:
        return embeddings.weight.device
    return torch.device(getattr(getattr(embeddings, "_hf_hook", None), "execution_device", "cpu"))


@contextlib.contextmanager
def _in_eval_mode(model: Any):
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
