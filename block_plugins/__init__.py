"""Lossless block-speculative translation for fairseq: give this package as ``--user-dir``.

Importing it registers models, criteria and tasks, lets torch read fairseq's checkpoints, has fairseq's complaints about
options told in one line, and does nothing else.
"""

import block_plugins.criterions
import block_plugins.models
import block_plugins.tasks  # noqa: F401
from block_plugins.checkpoints import allow_harmless_classes
from block_plugins.errors import tell_asserted_options_in_one_line

allow_harmless_classes()
tell_asserted_options_in_one_line()
