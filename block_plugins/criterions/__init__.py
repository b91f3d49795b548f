"""Training criteria; importing this package registers them with fairseq."""

from block_plugins.criterions import dual_reconstruction_loss as dual_reconstruction_loss
from block_plugins.criterions import glat_loss as glat_loss
from block_plugins.criterions import kd_loss as kd_loss
