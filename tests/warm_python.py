"""Python programs started by forking a process that has already imported torch.

Importing torch, pyarrow and scikit-learn costs a test program seconds, more than its own work.
`run` and `Popen` have the interface of `subprocess`. A command that starts this interpreter becomes
a fork of a server process, which has loaded those packages and none of ours. The fork hides them:
the program's own ``import torch`` passes through import hooks as in a new interpreter, but is free.
A program that replaces itself by another Python program (``exec``) stays in its process.

A warm program has the caller's folder, environment, umask and standard streams. It does not have
the caller's limits (`ulimit`), nor what is read once at a start: ``TZ``, ``OMP_NUM_THREADS`` (1).

Every other command, and Python with options or variables that are not emulated here, is started by
`subprocess`. A test that is about an interpreter's start or end must call `subprocess` itself:
closed descriptors, limits of memory, signals during imports, figures of what imports cost.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

PRELOADED = (
    "numpy", "torch", "torch._dynamo", "torch.utils.data", "torch.profiler", "pyarrow",
    "pyarrow.parquet", "duckdb", "msgspec", "yaml", "jinja2", "rich.console", "rich.table", "typer",
    "opentelemetry.trace", "sklearn.datasets",
)  # fmt: skip
LIMIT_S = 300.0
"""For a program that takes seconds: so long only on a machine that is very busy."""
_EMULATED = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, which starts Python programs in forks of the server."""

    _connection: socket.socket | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        # The arguments of the private method, in their order since Python 3.11.
        executable, preexec, _, pass_fds, cwd, env = rest[:6]
        is_shell, pipes, new_session = rest[8], rest[9:15], rest[20]
        command = [] if isinstance(args, str | bytes) else [os.fspath(word) for word in args]
        environ = dict(os.environ if env is None else env)
        is_special = executable or preexec or pass_fds or is_shell
        if is_special or not is_warm(command, environ):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {"argv": command, "cwd": os.path.abspath(cwd or "."), "environ": environ,
                   "new_session": new_session, "umask": _umask()}  # fmt: skip
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server_address())
        # Standard input, output and errors; -1 stands for this process's own.
        given = [
            number if fd == -1 else fd for number, fd in enumerate(pipes[::2][:1] + pipes[3::2])
        ]
        socket.send_fds(self._connection, [json.dumps(request).encode() + b"\n"], given)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = self._receive_number()
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        status = self._receive_number()
        self._connection.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(_deadstate)  # type: ignore[misc, no-any-return]
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                lock.release()
        return self.returncode

    def _receive_number(self) -> int:
        assert self._connection is not None
        received = self._connection.recv(4, socket.MSG_WAITALL)
        if len(received) < 4:
            raise RuntimeError("the process that forks the programs of tests has ended")
        return int.from_bytes(received, "little")


def _umask() -> int:
    """The umask of this process; ``os.umask`` reads it by changing it, for all threads."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split(None, 1)[0], 8)


def run(
    command: Any, *, timeout: float = LIMIT_S, check: bool = False, capture_output: bool = False,
    input: Any = None, **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """`subprocess.run` with `Popen` of this module, and a time limit."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def check_output(command: Any, **options: Any) -> Any:
    """`subprocess.check_output` with `Popen` of this module."""
    return run(command, stdout=subprocess.PIPE, check=True, **options).stdout


def is_warm(command: list[str], environ: dict[str, str]) -> bool:
    """Whether a fork of the server can stand for this command."""
    if command[:1] != [sys.executable] or not os.path.exists("/proc/self/status"):
        return False
    if any(name.startswith(("PYTHON", "LD_")) and name not in _EMULATED for name in environ):
        return False  # a process that runs already has read them
    _, words = split_options(command)
    return bool(words) and (words[0] in ("-c", "-m") or not words[0].startswith("-"))


def split_options(command: list[str]) -> tuple[set[str], list[str]]:
    """The emulated options of the interpreter, and what it is to run."""
    options, words = set(), command[1:]
    while words[:1] in (["-I"], ["-P"]) or words[:2] == ["-W", "ignore"]:
        options.add(words[0])
        words = words[2 if words[0] == "-W" else 1 :]
    return options, words


def commands(folder: Path) -> None:
    """Puts commands into a folder for ``PATH``, by which a shell starts warm programs."""
    modules = {
        "python": "",
        "otel-mlperf": "-m otel_mlperf",
        "torchrun": "-m torch.distributed.run",
    }
    start = f"{sys.executable} -E -S {__file__} {server_address()} {sys.executable}"
    for name, module in modules.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {start} {module} "$@"\n')
        (folder / name).chmod(0o755)


@cache
def server_address() -> str:
    """The socket of the server, which is started by the first call."""
    address = str(Path(tempfile.mkdtemp(prefix="warm-python-"), "socket"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("warm_server.py"), address,
             str(listening.fileno())],
            stdin=subprocess.PIPE,  # closed when this process ends: the server ends too
            pass_fds=[listening.fileno()],
            env=_environ_of_server(),
        )  # fmt: skip
    atexit.register(server.communicate)  # closes its input
    return address


def use_server(address: str) -> None:
    """Starts programs by a server that another process has started."""
    global server_address
    server_address = lambda: address  # type: ignore[assignment]  # noqa: E731


def _environ_of_server() -> dict[str, str]:
    ours = {n: text for n, text in os.environ.items() if not n.startswith(("OTEL", "PYTHON"))}
    return ours | {"OMP_NUM_THREADS": "1"}  # as `runs.environment` has it


def main(address: str, *command: str) -> None:
    """Runs a command in this process's place: with its input and output, and ends as it ends."""
    use_server(address)
    if not is_warm([*command], dict(os.environ)):
        os.execv(command[0], command)
    code = Popen(command).wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
