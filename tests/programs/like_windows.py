"""Runs commands of ``otel-mlperf``, with ``then`` between two, without what Windows lacks.

Modules and names that only POSIX has are gone for this package, and ``sys.platform`` is ``win32``.
The standard library and other packages are loaded before: theirs is another ``os.name``. So Linux
can pretend for our code alone, and only as far as it asks for names.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

LOADED = (
    "asyncio", "ctypes", "http.client", "logging.handlers", "multiprocessing.process", "selectors",
    "shutil", "sqlite3", "ssl", "subprocess", "tempfile", "termios", "urllib.request", "zipfile",
    "duckdb", "jinja2", "msgspec.json", "numpy", "opentelemetry.trace", "psutil",
    "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "rich.console", "rich.live",
    "rich.progress", "rich.table", "typer.completion", "typer.main", "typer.rich_utils", "yaml",
)  # fmt: skip
MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "curses")
NAMES = {
    "os": "O_NOFOLLOW O_CLOEXEC O_NONBLOCK O_DIRECTORY O_PATH O_SYNC getuid geteuid getgid uname "
    "fork register_at_fork setpriority getpriority PRIO_PROCESS nice sysconf statvfs fstatvfs "
    "pread pwrite fchmod fchown chown sched_getaffinity sched_setaffinity posix_fallocate "
    "fdatasync setsid killpg getpgid waitid getloadavg memfd_create pidfd_open eventfd",
    "signal": "SIGALRM SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGCHLD alarm setitimer ITIMER_REAL "
    "pthread_sigmask pthread_kill siginterrupt",
    "time": "clock_gettime CLOCK_BOOTTIME CLOCK_MONOTONIC pthread_getcpuclockid",
    "mmap": "MAP_SHARED MAP_PRIVATE MAP_POPULATE PROT_READ PROT_WRITE MADV_DONTNEED",
}


class NoSuchModule:
    """Finds nothing where Windows has nothing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Ends the search for a module of POSIX."""
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def refuse_descriptors(call: Any) -> Any:
    """``call``, which knows no ``dir_fd`` and opens no folder when this package calls it."""

    def refusing(path: Any, *rest: Any, **options: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("otel_mlperf"):
            if any(value is not None for key, value in options.items() if key.endswith("dir_fd")):
                raise NotImplementedError("dir_fd unavailable on this platform")
            if call.__name__ == "open" and os.path.isdir(path):
                raise PermissionError(13, "Permission denied", path)
            if isinstance(path, str) and path.startswith(("/proc", "/dev/")):
                raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *rest, **options)

    return refusing


def become_windows() -> None:
    """Takes away what Windows lacks."""
    for name in LOADED:
        importlib.import_module(name)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, NoSuchModule)  # type: ignore[arg-type]
    for module, names in NAMES.items():
        for name in names.split():
            vars(importlib.import_module(module)).pop(name, None)
    for name in ("open", "unlink", "mkdir", "stat", "replace", "rmdir"):
        setattr(os, name, refuse_descriptors(getattr(os, name)))
    sys.platform = "win32"


def main() -> None:
    """Runs each command; ends with the first that fails."""
    from otel_mlperf.cli import main as run_command

    words = sys.argv[1:]
    while words:
        end = words.index("then") if "then" in words else len(words)
        sys.argv[1:], words = words[:end], words[end + 1 :]
        try:
            run_command()
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    become_windows()
    main()
