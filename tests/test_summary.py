"""The README's table of results."""

import json
import sys
from pathlib import Path

import pytest
from fairseq_tools import REPOSITORY


def write(path: Path, rows: list[tuple[str, int, float, float]]) -> Path:
    entries = [
        {
            "strategy": name,
            "batch": batch,
            "BLEU": 20.0,
            "identical": 1.0,
            "sentences_per_second": speed,
            "speedup": gain,
        }
        for name, batch, speed, gain in rows
    ]
    path.write_text(json.dumps({"circumstances": f"a machine of {path.stem}", "rows": entries}))
    return path


def test_the_fastest_draft_size_of_each_batch_size_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = [("fairseq beam 1", 1, 2.0, 1.0), ("GAD beta 1, block 5", 1, 6.0, 3.0), ("GAD beta 1, block 9", 1, 5.0, 2.5)]
    many = [
        ("fairseq beam 1", 8, 4.0, 1.0),
        ("GAD beta 1, block 5", 8, 9.0, 2.25),
        ("GAD beta 1, block 9", 8, 8.0, 2.0),
    ]
    paths = [write(tmp_path / "a.json", one), write(tmp_path / "b.json", many)]
    (tmp_path / "README.md").write_text(
        "before\n<!-- results: made by benchmarks/summary.py -->\nold\n<!-- end of results -->\nafter\n"
    )
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import summary

    monkeypatch.setattr(sys, "argv", ["summary", *map(str, paths), "--readme", str(tmp_path / "README.md")])
    summary.main()
    text = (tmp_path / "README.md").read_text()
    assert "| GAD beta 1 | 20.00 | 100.0 % | 6.0 (3.00 x) | 9.0 (2.25 x) |" in text
    assert "a machine of a; a machine of b." in text
    assert text.startswith("before\n") and text.endswith("<!-- end of results -->\nafter\n") and "old" not in text
    summary.main()
    assert (tmp_path / "README.md").read_text() == text
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(SystemExit, match="lacks the marks"):
        summary.main()
