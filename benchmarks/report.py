"""What every benchmark says of its machine, and where it writes what it found."""

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import fairseq
import torch


def _told_by_linux(name: str) -> str:
    """What /proc/cpuinfo has under this name; '' where there is nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith(name)), "")


def processor() -> str:
    """The processor's name, where Linux tells it."""
    return _told_by_linux("model name") or platform.processor() or "unknown processor"


def bf16_instructions() -> list[str]:
    """The processor's instructions for bfloat16, as far as Linux tells them."""
    return [flag for flag in ("avx512_bf16", "amx_bf16") if flag in _told_by_linux("flags").split()]


def circumstances() -> str:
    """The day, the machine and the versions."""
    machine = f"{platform.machine()}, {processor()}, {torch.get_num_threads()} threads, float32"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, fairseq {fairseq.__version__}"
    return f"{datetime.date.today()}; {machine}; {versions}"


def save(output: str | None, report: str, content: dict[str, Any]) -> Path | None:
    """Prints the report and, where ``output`` names a file, writes it there with its JSON, which tells the
    circumstances as well, beside it.

    Returns where its plot belongs.
    """
    print(report)
    if output is None:
        return None
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"circumstances": circumstances(), **content}
    texts = {path.with_suffix(".json"): json.dumps(content, indent=2) + "\n", path: report}
    for file, text in texts.items():  # the report last: where it is, all is there
        partial = file.with_name(file.name + ".tmp")
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    return path.with_suffix(".svg")
