"""Training criteria; importing this package registers them with fairseq."""

from block_plugins.criterions import glat_loss as glat_loss
