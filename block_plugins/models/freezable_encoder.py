"""A Transformer encoder that a drafter can leave as it is, so that it remains its verifier's."""

from dataclasses import field
from typing import Any

from fairseq.models.transformer import TransformerEncoderBase


def freeze_option() -> Any:
    """The field of a model's configuration behind ``--freeze-encoder``."""
    return field(
        default=False,
        metadata={
            "help": "leave the encoder, and embeddings that are shared with it, as they are: a drafter that starts "
            "from its verifier then shares the verifier's encoder, which decoding runs once for both"
        },
    )


class FreezableEncoder(TransformerEncoderBase):
    """fairseq's encoder, trained or not."""

    frozen = False

    def freeze(self) -> None:
        """No training from here on: no gradients, no dropout."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "FreezableEncoder":
        """As any module's, but a frozen encoder stays in evaluation mode."""
        super().train(mode and not self.frozen)
        return self
