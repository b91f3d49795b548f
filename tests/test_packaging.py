"""Ranges, pinned versions and the script that makes the environment."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = {
    "Linux on x86-64": {"platform_system": "Linux", "platform_machine": "x86_64"},
    "Linux on ARM": {"platform_system": "Linux", "platform_machine": "aarch64"},
    "macOS": {"platform_system": "Darwin", "platform_machine": "arm64"},
}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py tells setuptools."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: told.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    return told


def applying(lines: list[str], platform: dict[str, str]) -> list[Requirement]:
    requirements = [Requirement(line) for line in lines]
    return [one for one in requirements if one.marker is None or one.marker.evaluate(platform)]


def pinned(platform: dict[str, str]) -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = applying([line for line in lines if line and not line.startswith("#")], platform)
    versions = {}
    for requirement in requirements:
        exact = re.fullmatch(r"==([^,]+)", str(requirement.specifier))
        assert exact, f"{requirement} isn't exact"
        name = canonicalize_name(requirement.name)
        assert name not in versions, f"{name} is pinned twice"
        versions[name] = Version(exact[1])
    return versions


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS.keys())
def test_what_is_required_is_pinned_within_its_range(metadata: dict[str, Any], platform: dict[str, str]) -> None:
    versions = pinned(platform)
    required = applying([*metadata["install_requires"], *metadata["extras_require"]["dev"]], platform)
    for requirement in required:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement
    distributions = {one.name for one in required} & {"fairseq", "ve-fairseq", "fairseq-fixed"}
    assert distributions == {"ve-fairseq" if platform == PLATFORMS["Linux on x86-64"] else "fairseq-fixed"}
    assert versions["torch"] == Version("2.13.0")  # any local version (+cpu, +cu...) satisfies this one


def test_all_of_the_plugin_is_packaged(metadata: dict[str, Any]) -> None:
    folders = {path.parent for path in (ROOT / "block_plugins").rglob("*.py")}
    assert {str(folder.relative_to(ROOT)).replace(os.sep, ".") for folder in folders} == set(metadata["packages"])
    ((package, patterns),) = metadata["package_data"].items()
    files = {path for pattern in patterns for path in (ROOT / package).glob(pattern)}
    everything = (path for path in (ROOT / "block_plugins").rglob("*.*") if "__pycache__" not in path.parts)
    others = {path for path in everything if path.suffix != ".py"}
    assert files == others and {path.name for path in files} >= {"drafter_wmt14.yaml", "drafter_wmt16.yaml"}
    assert (metadata["name"], metadata["python_requires"], metadata["license"]) == ("fairseq-gad", ">=3.11", "MIT")
    assert metadata["extras_require"].keys() >= {"dev", "bench", "plots"}


def setup(environment: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/setup.sh", environment],
        env={**os.environ, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def without_packages(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def test_a_foreign_environment_is_checked_and_left_alone(tmp_path: Path) -> None:
    environment = without_packages(tmp_path / "environment")
    before = sorted(environment.rglob("*"))
    result = setup(environment)
    assert result.returncode == 1
    assert re.fullmatch(r"error: \S+ lacks torch, .*fairseq; mend it with: \S+/bin/pip install .*\n", result.stderr)

    site = next((environment / "lib").glob("python*/site-packages"))
    (site / "all.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    result = setup(environment)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    (site / "all.pth").unlink()
    assert sorted(environment.rglob("*")) == before


def test_an_own_environment_is_installed_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ ! -e {tmp_path}/fail ]\n', encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / ".fairseq-gad").touch()  # as an installation that was interrupted leaves it
    (tmp_path / "fail").touch()
    assert setup(tmp_path).returncode != 0
    (tmp_path / "fail").unlink()
    for _ in range(2):
        assert setup(tmp_path).returncode == 0
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert len(calls) == 2 and calls[0] == calls[1]
    flags = "--quiet --no-compile --disable-pip-version-check"
    assert f"install {flags} -e {ROOT}[dev] -c {ROOT}/constraints.txt" in calls[1]


def test_no_suitable_python(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    result = setup(tmp_path / "environment", PATH=str(tools))
    assert result.returncode != 0
    assert result.stderr.startswith("error: neither Python 3.11 nor 3.12 is on the PATH")
    assert not (tmp_path / "environment").exists()
