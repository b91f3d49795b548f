"""Python programs that start at once: forks of a process that has imported what takes seconds, torch and fairseq.

The tests start fairseq's tools and the scripts hundreds of times. ``folder`` makes a folder with stand-ins for
``python`` and ``fairseq-*``, to be put in front on the PATH. Each is a small client: it sends its arguments,
environment, working directory, limits and open files to the server, whose fork then is the real program, in a process
of its own, and it ends as that ends, by the same signal if it is one. A signal to the client is passed on; when the
client is gone, so is the program.

The server ends with the process that started it.
"""

import atexit
import contextlib
import importlib
import importlib.metadata
import io
import json
import logging
import os
import random
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_CPU)
PROGRAMS = (
    *("python", "fairseq-train", "fairseq-generate", "fairseq-interactive", "fairseq-preprocess", "fairseq-score"),
    *("fairseq-validate", "fairseq-hydra-train"),
)
IMPORTED = (
    *("torch", "numpy", "numba", "hydra", "sacrebleu", "sacremoses", "regex", "tqdm", "fairseq.checkpoint_utils"),
    *("fairseq.options", "fairseq.tasks.translation", "fairseq.models.transformer", "fairseq.sequence_generator"),
    *("fairseq.trainer", "fairseq.criterions", "fairseq.optim", "fairseq.data.indexed_dataset"),
)

CLIENT = """#!{python} -IS
import json, os, resource, signal, socket, sys

passed_on = {{signal.SIGINT, signal.SIGTERM, signal.SIGHUP}}
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
files = [int(name) for name in os.listdir("/proc/self/fd")]
files = [number for number in files if number != server.fileno() and os.path.exists(f"/proc/self/fd/{{number}}")]
limits = [resource.getrlimit(kind) for kind in {limits}]
request = [os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ), os.getcwd(), limits, files]
message = json.dumps(request).encode()
socket.send_fds(server, [len(message).to_bytes(8, "big")], files)
server.sendall(message)
answer = server.recv(8)
if len(answer) < 8:
    sys.exit("the server of warm tools has ended")
child = int.from_bytes(answer, "big")
def forward(number, frame):
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass
for number in passed_on:
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, forward)
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
status = server.recv(8)
code = os.waitstatus_to_exitcode(int.from_bytes(status, "big")) if status else 1
if code < 0:
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def folder() -> Path:
    """The folder with the stand-ins of this process's server, which is started by the first call."""
    if not _STARTED:
        home = Path(tempfile.mkdtemp(prefix="warm-tools-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        address = home / "socket"
        (home / "bin").mkdir()
        text = CLIENT.format(python=sys.executable, address=str(address), limits=[int(kind) for kind in LIMITS])
        for name in PROGRAMS:
            program = home / "bin" / name
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, __file__, address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        _STARTED.append((server, home / "bin"))  # its standard input stays open as long as this process lives
    found: Path = _STARTED[0][1]
    return found


_ENTRIES: dict[str, importlib.metadata.EntryPoint] = {}
_STARTED: list[tuple[subprocess.Popen[bytes], Path]] = []


def serve(address: str) -> None:
    """Forks a program for each client, until standard input ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    logging.root.handlers.clear()  # of an import that logged; a program's own configuration would find them and give up
    logging.root.setLevel(logging.WARNING)
    _ENTRIES.update({entry.name: entry for entry in importlib.metadata.entry_points(group="console_scripts")})
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those who attend to clients are waited for by nobody
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the tests' process group
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(0)
            attend(connection)
            os._exit(0)
        connection.close()


def attend(connection: socket.socket) -> None:
    """Runs a client's program, tells the client of its process and of its end, and ends it when the client is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    size, received, _, _ = socket.recv_fds(connection, 8, 64)
    message = b""
    while len(message) < int.from_bytes(size, "big"):
        part = connection.recv(1 << 16)
        if not part:  # the client is gone
            os._exit(1)
        message += part
    request = json.loads(message)
    child = os.fork()
    if child == 0:
        end = 1
        try:
            connection.close()
            become(request, received)
            end = run(request[0], request[1])
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(end)
    for number in received:
        os.close(number)
    connection.sendall(child.to_bytes(8, "big"))
    process = os.pidfd_open(child)
    ready, _, _ = select.select([process, connection], [], [])
    if process not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(status.to_bytes(8, "big"))


def become(request: list[Any], received: list[int]) -> None:
    """Takes over the client's files, environment, folder and limits."""
    _, _, environment, cwd, limits, files = request
    moved = [os.dup2(number, 200 + at) for at, number in enumerate(received)]  # out of the way of the numbers wanted
    for number in received:
        os.close(number)
    for number, wanted in zip(moved, files, strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for kind, (soft, hard) in zip(LIMITS, limits, strict=True):
        resource.setrlimit(kind, (soft, hard))
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(number, mode, closefd=False)  # noqa: SIM115 - open as long as the program runs
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    if environment.get("PYTHONUNBUFFERED"):
        raw = open(1, "wb", buffering=0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(raw, write_through=True)  # type: ignore[misc]
    elif os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)
    sys.path[0] = str(Path(sys.executable).parent)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    random.seed()
    importlib.import_module("numpy").random.seed()
    threads = environment.get("OMP_NUM_THREADS", "")
    importlib.import_module("torch").set_num_threads(int(threads) if threads.isdigit() else os.cpu_count() or 1)


def run(program: str, arguments: list[str]) -> int:
    """Runs it to its end; the exit status. A program that ends by an exception prints it, as ever."""
    try:
        if program == "python":
            run_python(arguments)
        else:
            sys.argv = [program, *arguments]
            return exit_status(_ENTRIES[program].load()())
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    finally:
        run_exit_handlers()
    return 0


def run_exit_handlers() -> None:
    """What a program left to its end."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()


def exit_status(code: object) -> int:
    """What ``sys.exit(code)`` means."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def run_python(arguments: list[str]) -> None:
    """``python FILE``, ``-c TEXT``, ``-m MODULE`` or standard input, with any ``-W``."""
    while arguments[:1] == ["-W"]:
        arguments = arguments[2:]
    kind, rest = (arguments[0], arguments[1:]) if arguments else ("-", [])
    if kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind in ("-c", "-"):
        sys.argv, sys.path[0] = [kind, *(rest[1:] if kind == "-c" else rest)], ""
        text = rest[0] if kind == "-c" else sys.stdin.read()
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.argv, sys.path[0] = [kind, *rest], str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
