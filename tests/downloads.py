"""What the tests of the download scripts share: small archives, runs of a script, a server that breaks off."""

import contextlib
import io
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fairseq_tools import script_environment

ROOT = Path(__file__).resolve().parents[1]
OWN_VARIABLES = re.compile(r".*_(URL|SHA256)|OUT|WORKERS|TRIES|BPE_SYMBOLS|PYTHON_BIN|.*_proxy", re.IGNORECASE)
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on the PATH")

PAGE = b"""<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head>
<body>Google Drive can't scan this file for viruses.</body></html>"""


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without variables that the scripts read, and with ``variables``."""
    inherited = {name: value for name, value in script_environment().items() if not OWN_VARIABLES.fullmatch(name)}
    return {**inherited, "WORKERS": "1", **variables}


def run(
    script: str, *arguments: str, before: Callable[[], None] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script of the checkout; ``before`` is called in its process."""
    return subprocess.run(
        [ROOT / "scripts" / script, *arguments],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=before,
    )


def succeed(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    result = run(script, *arguments, **variables)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result


def archive(path: Path, members: dict[str, bytes]) -> str:
    """Writes a .tar.gz with these members; its address."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path.as_uri()


def files(folder: Path) -> list[str]:
    """The files below a folder, without those that a run may leave behind unfinished."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if not path.name.endswith(".part"))


@contextlib.contextmanager
def breaking_server(content: bytes, breaks: int) -> Iterator[tuple[str, list[str]]]:
    """An address that serves ``content``, and the list of what was asked for (the Range header, or "").

    The first ``breaks`` answers announce all of what is left and end after half of it.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
            left = content[start:]
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(left)))
            self.end_headers()
            self.wfile.write(left[: len(left) // 2] if len(asked) <= breaks else left)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/file", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
