"""The process whose forks are the programs that `warm_python` starts."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import logging
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any, NoReturn

from warm_python import PRELOADED, Popen, is_warm, split_options, use_server


class Hidden:
    """Finder of packages that are loaded but no longer in `sys.modules`.

    All modules that were loaded with a package come back with it, as its import would load them;
    a package that another one had loaded comes back alone.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, types.ModuleType]] = {}

    def load(self, names: tuple[str, ...]) -> None:
        """Imports ``names`` and hides what they loaded in addition to the standard library."""
        for name in names:
            before = set(sys.modules)
            importlib.import_module(name)
            new = {m: sys.modules[m] for m in sys.modules.keys() - before if _is_foreign(m)}
            for root in {_root(module) for module in new}:
                of_root = {m: module for m, module in new.items() if _root(m) == root}
                group = new if root == _root(name) else of_root
                self._groups.update(dict.fromkeys(of_root, group))
        for name in self._groups:
            del sys.modules[name]

    def module(self, name: str) -> Any:
        """A hidden module."""
        return self._groups[name][name]

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """The spec of a hidden module, by which its group comes back."""
        group = self._groups.get(name)
        if group is None or _is_shadowed(name):
            return None
        return ModuleSpec(name, _Loaded(name, group))  # type: ignore[arg-type]


class _Loaded:
    """A loader of a module that is loaded, and of those that were loaded with it."""

    def __init__(self, name: str, group: dict[str, types.ModuleType]) -> None:
        self._module, self._spec = group[name], group[name].__spec__
        self._group = group

    def create_module(self, _: Any) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        for name, other in self._group.items():
            sys.modules.setdefault(name, other)


def _is_foreign(name: str) -> bool:
    return _root(name) not in {*sys.stdlib_module_names, "__main__", "__mp_main__"}


def _root(name: str) -> str:
    return name.partition(".")[0]


def _is_shadowed(name: str) -> bool:
    """Whether the program has a module of that name of its own, in front of the installed one."""
    own = [os.path.join(folder, name) for folder in sys.path if folder not in PATH]
    return any(os.path.isdir(path) or os.path.isfile(f"{path}.py") for path in own)


class ReplacedError(BaseException):
    """The program asked to be replaced by another Python program."""


def serve(listening: socket.socket) -> dict[str, Any]:
    """Forks for each request; returns in the fork, with the request."""
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                os._exit(0)  # nobody is left who could ask
            if key.data is not None:
                selector.unregister(key.fd)
                _report_end(key.fd, *key.data)
                continue
            connection, _ = listening.accept()
            request, descriptors = _receive(connection)
            pid = os.fork()
            if not pid:
                _close(selector, connection)
                _take_over(request, descriptors)
                return request
            for descriptor in descriptors:
                os.close(descriptor)
            _send(connection, pid)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 16)
    return json.loads(text), descriptors


def _report_end(pidfd: int, pid: int, connection: socket.socket) -> None:
    os.close(pidfd)
    _send(connection, os.waitpid(pid, 0)[1])
    connection.close()


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # who asked may be gone
        connection.sendall(number.to_bytes(4, "little"))


def _close(selector: selectors.BaseSelector, connection: socket.socket) -> None:
    """Closes in the fork what is the server's, by the objects that would close it later."""
    for key in [*selector.get_map().values()]:
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        elif key.data is not None:
            os.close(key.fd)
            key.data[1].close()
    selector.close()
    connection.close()


def _take_over(request: dict[str, Any], descriptors: list[int]) -> None:
    """Makes this fork what a new process is before its program starts."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    if request["new_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    HIDDEN.module("numpy").random.seed()


def run_to_end(argv: list[str], environ: dict[str, str]) -> NoReturn:
    """Runs a command line, and those that it is replaced by, and ends the process."""
    while True:
        try:
            become(argv, environ)
        except ReplacedError as by:
            argv, environ = by.args
            continue
        except SystemExit as ended:
            _end(_exit_code(ended))
        except BaseException as error:  # noqa: BLE001 - whatever the program raised
            sys.excepthook(type(error), error, _cut_own_frames(error))
            _end(-signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
        _end(0)


def become(argv: list[str], environ: dict[str, str]) -> None:
    """Runs a command line in this process, as the interpreter does."""
    options, words = split_options(argv)
    os.environ.clear()
    os.environ.update(environ)
    for name in [name for name in sys.modules if _is_foreign(name)]:
        del sys.modules[name]
    loggers = logging.root.manager.loggerDict
    for name in loggers.keys() - LOGGERS:
        del loggers[name]
    folders = "" if "-I" in options else environ.get("PYTHONPATH", "")
    own = [folder for folder in folders.split(os.pathsep) if folder]
    sys.path[:], sys.meta_path[:] = [*own, *PATH], [HIDDEN, *FINDERS]
    if "-W" in options:
        warnings.simplefilter("ignore")
    if "-I" not in options:
        _obey(environ)
    sys.orig_argv[:] = argv
    sys.argv[:] = [words[0], *words[2:]] if words[0] in ("-c", "-m") else words
    importlib.invalidate_caches()
    with contextlib.suppress(ImportError):
        import sitecustomize  # noqa: F401 - the first import of an interpreter
    _run(words, is_safe=bool(options & {"-I", "-P"}))


def _obey(environ: dict[str, str]) -> None:
    """Does what an interpreter does at its start for variables that the server did not have."""
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    if environ.get("PYTHONUNBUFFERED"):
        for name, number in (("stdout", 1), ("stderr", 2)):
            before = getattr(sys, name)
            text = io.TextIOWrapper(
                io.FileIO(number, "w", closefd=False), before.encoding, before.errors,
                newline="\n", write_through=True,
            )  # fmt: skip
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)


def _run(words: list[str], *, is_safe: bool) -> None:
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    place = "" if words[0] == "-c" else os.getcwd()
    if words[0] not in ("-c", "-m"):
        path = os.path.abspath(words[0])
        place = os.path.dirname(os.path.realpath(path))
        loader = SourceFileLoader("__main__", path)
        module.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    if not is_safe:
        sys.path.insert(0, place)
    if words[0] == "-m":
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif words[0] == "-c":
        exec(compile(words[1], "<string>", "exec"), module.__dict__)
    else:
        exec(compile(_read(path), path, "exec"), module.__dict__)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        place = f"{sys.executable}: can't open file {path!r}"
        print(f"{place}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)


def replace_exec() -> None:
    """Lets ``exec`` of a Python program end in `become`; any other is what it was."""
    execve = os.execve

    def execve_warm(path: Any, argv: Any, env: Any) -> None:
        command = (
            [os.fspath(path), *map(os.fspath, [*argv][1:])] if not isinstance(path, int) else []
        )
        environ = {os.fsdecode(name): os.fsdecode(text) for name, text in env.items()}
        if not is_warm(command, environ):
            execve(path, argv, env)
        raise ReplacedError(command, environ)

    os.execve = execve_warm  # type: ignore[assignment]
    os.execv = lambda path, argv: execve_warm(path, argv, os.environ)  # type: ignore[assignment]


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def _cut_own_frames(error: BaseException) -> types.TracebackType | None:
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    error.__traceback__ = found
    return found


def _end(code: int) -> NoReturn:
    """Ends as the interpreter does, but takes no module apart: that would copy all their memory.

    A negative ``code`` is the signal that ends the process.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
del sys.modules["warm_python"]
PATH, FINDERS = [*sys.path], [*sys.meta_path]
HIDDEN = Hidden()
HIDDEN.load(PRELOADED)
LOGGERS = {*logging.root.manager.loggerDict}
replace_exec()
use_server(sys.argv[1])
subprocess.Popen = Popen  # type: ignore[misc]  # programs that these programs start
gc.freeze()  # otherwise the first collection in each fork would copy all of it
REQUEST = serve(socket.socket(fileno=int(sys.argv[2])))
run_to_end(REQUEST["argv"], REQUEST["environ"])
