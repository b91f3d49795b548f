"""Model architectures; importing this package registers them with fairseq."""

from block_plugins.models import block_nat as block_nat
from block_plugins.models import dual_transformer as dual_transformer
from block_plugins.models import transformer_drafter as transformer_drafter
