"""What the forward of a model can do, as far as decoding has to know."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Traits:
    """How a model is called. The defaults hold for the classes of every family; other models are probed.

    Attributes:
        head: what turns hidden states into logits: `"embeddings"` (the output embeddings alone), `"module"` (all that
            the model's forward does behind its body) or `"whole"` (body and head cannot be told apart: every forward
            gives the logits of all its positions).
        masks: what attention masks look like: `"grid"` (4-D), or `"keys"` and `"flags"` (2-D, of integers and of
            bools), which cannot say what each query sees.
        own_positions: the model counts positions itself, from the first token that it is fed.
        first_position: number of the first position, as learned embeddings of RoBERTa's kind count.
        takes_cache: the model writes keys and values into a [`DiffusionCache`], and reads all of them.
        window: some layers see no farther than so many tokens; 0 if all see everything.
        layered: the model takes one mask per kind of layer, in a dict.
        probed: somebody looked.
    """

    head: str = "embeddings"
    masks: str = "grid"
    own_positions: bool = False
    first_position: int = 0
    takes_cache: bool = True
    window: int = 0
    layered: bool = False
    probed: bool = False

    @property
    def per_query(self) -> bool:
        """Whether a mask can say what each query sees, at a position that is given."""
        return self.masks == "grid" and not self.own_positions


DEFAULT = Traits()


def traits_of(model: Any) -> Traits:
    """What is known of a model; the defaults if it was never probed."""
    return getattr(model, "_decoding_traits", DEFAULT)


def remember(model: Any, traits: Traits) -> None:
    """Keeps what a probe found with the model, so that copies of it have it too."""
    model._decoding_traits = traits
