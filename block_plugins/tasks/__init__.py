"""Tasks; importing this package registers them with fairseq."""

from block_plugins.tasks import dual_translation as dual_translation
from block_plugins.tasks import translation_lev_modified as translation_lev_modified
