"""Puts ``scripts/`` on the path, as ``scripts/prepare_corpus.sh`` does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
