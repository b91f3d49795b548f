#!/usr/bin/env python3
"""Whether a file is a whole checkpoint, in one of the two formats that torch.save has had.

    scripts/check_checkpoint.py FILE

Ends with an error line if it isn't. The sums inside of a zip archive tell a whole one from a damaged one; in the format
before torch 1.6, which has none, only reading it does.
"""

import sys
import zipfile
from pathlib import Path

ZIP = b"PK\x03\x04"
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""torch's magic number, pickled."""


def problem(path: Path) -> str | None:
    """What is wrong with the file, or None."""
    with path.open("rb") as file:
        start = file.read(len(LEGACY))
    if start == LEGACY:
        return legacy_problem(path)
    if not start.startswith(ZIP):
        return "it doesn't begin as a checkpoint of torch.save does"
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        return f"a checkpoint that is not whole ({error})"
    if damaged is not None:
        return f"a checkpoint with a damaged part ({damaged})"
    if not any(name.endswith("/data.pkl") for name in names):
        return "a zip archive, but not one of torch.save"
    return None


def legacy_problem(path: Path) -> str | None:
    """The same for a file in the older format."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from block_plugins import checkpoints
    from block_plugins.errors import UserError

    try:
        checkpoints.read(str(path), "FILE")
    except UserError as error:
        return str(error)
    return None


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = problem(Path(sys.argv[1]))
    if found is not None:
        sys.exit(f"error: {found}")


if __name__ == "__main__":
    main()
