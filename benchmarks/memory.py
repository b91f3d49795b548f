"""How much memory a piece of work takes at its peak, beyond what the process held before."""

import contextlib
import ctypes
import gc
from pathlib import Path
from types import TracebackType

_PROCESS = Path("/proc/self")


class PeakMemory:
    """Measures the block of a ``with`` statement; ``bytes`` is None where the system can't tell (not Linux).

    Linux keeps the largest resident size that a process had, and starts anew from the present size where 5 is written
    to ``clear_refs``. Before that, memory that was freed but is still held is given back, so that the work pays for all
    it takes and not only for what earlier work didn't leave behind.
    """

    bytes: int | None = None

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        self.before: int | None = None
        with contextlib.suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")
            self.before = _status("VmRSS")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.before is not None:
            self.bytes = max(0, _status("VmHWM") - self.before)


def _status(name: str) -> int:
    """A size in bytes from the process's status."""
    lines = (_PROCESS / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
