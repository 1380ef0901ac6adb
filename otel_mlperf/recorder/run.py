"""What happens between ``start()`` and ``stop()``?

There is one active run in a process. Starting may raise, at once and clearly; from then on nothing
does. Stopping is idempotent, also at exit and after Ctrl-C, and bounded in time.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.config import load_config
from otel_mlperf.errors import JournalError, OtelMlperfError, RunActive
from otel_mlperf.recorder import span as spans
from otel_mlperf.recorder.attributes import safe_attributes, safe_name_text
from otel_mlperf.recorder.faults import count_with, internal_error, log, say_once
from otel_mlperf.recorder.scrub import describe_exception, is_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from otel_mlperf.config import Config
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.recorder.launch import AgentWatch
    from otel_mlperf.recorder.section import Section
    from otel_mlperf.recorder.state import Recorder

_NOW_AND_THEN_NS = 100_000_000
_file_number = itertools.count(1).__next__
_starts: dict[str, int] = {}
_current: Run | None = None


class Run:
    """An active run, or a finished one; made by ``start()``. Also a context manager."""

    def __init__(
        self,
        name: str,
        recorder: Recorder | None = None,
        section: Section | None = None,
        watch: AgentWatch | None = None,
    ) -> None:
        self.name = name
        """What it is called, among other runs of the same script."""
        self._recorder = recorder
        self._section = section
        self._watch = watch
        self._result: dict[str, Any] = {}
        self._is_open = recorder is not None
        self._pid = os.getpid()
        self._failure: list[str] | None = None
        self._hook: Any = None
        self._taken_over: Callable[[], None] | None = None

    @property
    def id(self) -> str:
        """The run's id, the same for all its ranks; empty if nothing is recorded."""
        return self._recorder.meta.run_id if self._recorder else ""

    @property
    def path(self) -> Path | None:
        """The run folder; None if nothing is recorded."""
        from pathlib import Path

        return Path(self._recorder.meta.run_folder) if self._recorder else None

    @property
    def step(self) -> int:
        """Number of the open training step, else of the next one. Set it after a rollback."""
        if self._recorder is None:
            return 0
        step = self._recorder.stepping.current(names.TRAIN)
        return step.number if step else self._recorder.stepping.next_number()

    @step.setter
    def step(self, number: int) -> None:
        if self._recorder is not None:
            self._recorder.stepping.set_next_number(int(number))

    def result(self, **values: Any) -> None:
        """What came out of the run: ``run.result(accuracy=0.93)``; shown when runs are compared."""
        try:
            self._result.update(safe_attributes(values))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def stop(self) -> None:
        """Ends the run; calling it again does nothing."""
        self._stop(None)

    def lend(self, taken_over: Callable[[], None]) -> None:
        """Begun on behalf of a program: its own ``start()`` goes on with this run.

        Args:
            taken_over: called when that happens.
        """
        self._taken_over = taken_over

    def summary(self) -> dict[str, Any]:
        """The run's summary so far, as ``otel-mlperf summary --json`` gives it.

        Raises:
            OtelMlperfError: it could not be made; says why.
        """
        import json

        found: dict[str, Any] = json.loads(self._read("--json"))
        return found

    def _repr_html_(self) -> str:
        """The summary as a notebook shows it."""
        import html

        try:
            return f"<pre>{html.escape(self._read())}</pre>"
        except (OtelMlperfError, OSError) as error:
            return f"<pre>{html.escape(str(error))}</pre>"

    def __repr__(self) -> str:
        state = "active" if self._is_open else "finished" if self._recorder else "not recorded"
        return f"<Run {self.name!r} {self.id[:8]} {state}>"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(error)

    def _read(self, *options: str) -> str:
        import subprocess

        from otel_mlperf.recorder.closing import summary_environ

        if self._recorder is None:
            raise OtelMlperfError("reading the run's summary: nothing was recorded (never started)")
        folder = self._recorder.meta.run_folder
        child = subprocess.run(
            [sys.executable, "-m", "otel_mlperf", "summary", folder, *options],
            env=summary_environ() | {"NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode:
            raise OtelMlperfError(f"reading the summary of {folder}: {child.stderr.strip()}")
        return child.stdout

    def _stop(self, error: BaseException | None) -> None:
        global _current
        if not self._is_open or os.getpid() != self._pid:
            return
        self._is_open = False
        if _current is self:
            _current = None
        try:
            self._close(error)
        except Exception as problem:  # noqa: BLE001 - recording never raises
            internal_error(problem)

    def _close(self, error: BaseException | None) -> None:
        from otel_mlperf.recorder import closing

        recorder, section = self._recorder, self._section
        assert recorder is not None
        assert section is not None
        deadline = time.monotonic() + closing.PATIENCE_S
        self._unhook()
        words = self._failure
        if error is not None and is_failure(error):
            words = describe_exception(error, with_text=recorder.config.exception_text)
        spans.activate(None)
        recorder.values.finish(time.monotonic_ns() + 200_000_000)
        recorder.binding.retire()
        result = {f"{names.RESULT}{key}": value for key, value in self._result.items()}
        closing.close_sections(recorder, section, words, result)
        head = recorder.journal.close()
        recorder.retire()
        count_with(None)
        self._wait(head, deadline)

    def _wait(self, head: int, deadline: float) -> None:
        from otel_mlperf.recorder import closing

        recorder = self._recorder
        assert recorder is not None
        if recorder.config.agent == "none":
            return
        if self._watch is not None:
            self._watch.ensure()
        child = None
        if recorder.config.console and recorder.meta.local_rank == 0 and recorder.meta.rank == 0:
            path, folder = recorder.journal.path, recorder.meta.run_folder
            child = closing.print_summary(folder, path, head)
        if self._watch is not None and self._watch.thread is not None:
            # It dies with this process: what it has not stored and sent by then waits for recover.
            closing.wait_stored(recorder, deadline)
            if recorder.meta.world_size == 1:
                self._watch.thread.join(max(0.0, deadline - time.monotonic()))
            closing.await_child(child, deadline)
            return
        is_durable = closing.wait_durable(recorder, head, deadline)
        closing.await_child(child, deadline)
        if is_durable:
            recorder.journal.release()

    # -- failures of a script that did not write ``with`` ----------------------------------------

    def _hook_in(self) -> None:
        before = sys.excepthook

        def hook(kind: Any, error: Any, trace: Any) -> None:
            self._note_failure(error)
            before(kind, error, trace)

        self._hook = (hook, before)
        sys.excepthook = hook
        atexit.register(self.stop)

    def _unhook(self) -> None:
        if self._hook is not None and sys.excepthook is self._hook[0]:
            sys.excepthook = self._hook[1]
        atexit.unregister(self.stop)

    def _note_failure(self, error: Any) -> None:
        try:
            recorder = self._recorder
            if recorder is not None and self._is_open and is_failure(error):
                with_text = recorder.config.exception_text
                self._failure = describe_exception(error, with_text=with_text)
        except Exception as problem:  # noqa: BLE001 - the program's exception goes on
            internal_error(problem)


def start(
    name: str | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    step: int = 0,
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Run:
    """Begins a run, which is also a context manager.

    Args:
        name: what the run is called; the script's name by default.
        params: hyperparameters, kept in the run folder.
        tags: words to find the run by.
        step: number of the first training step, for a resumed training.
        config: a ``Config``, a mapping, or the path of a YAML file.
        **overrides: single settings of ``Config``.

    Raises:
        RunActive: another run of this process is active.
        ConfigError: an argument or the configuration file is wrong.
        JournalError: there is no room for the journal.
    """
    global _current
    settings = load_config(config, overrides)
    if _current is not None and _current._is_open and _current._pid == os.getpid():
        if _current._taken_over is not None:
            return _take_over(_current, settings, dict(params or {}), list(tags), int(step))
        if not _is_notebook():
            raise RunActive(
                f"starting a run: {_current.name!r} ({_current.id[:8]}) is still active in this "
                "process; stop() it first, or use 'with start(...)'"
            )
        log.warning("the run %r is finished, because another one starts", _current.name)
        _current.stop()
    text = safe_name_text(name or _script_name())
    if settings.disabled or not sys.platform.startswith("linux"):
        if not settings.disabled:
            say_once("otel_mlperf records on Linux only (%s found): nothing is recorded",
                     sys.platform)  # fmt: skip
        return Run(text)
    _current = _begin(text, settings, dict(params or {}), list(tags), int(step))
    return _current


def _take_over(
    run: Run, settings: Config, params: dict[str, Any], tags: list[str], step: int
) -> Run:
    """Goes on with a run that was begun on the program's behalf, under the name that it has."""
    from otel_mlperf.recorder.folder import add_facts

    assert run._recorder is not None
    assert run._taken_over is not None
    if settings != run._recorder.config:
        say_once("settings given to start() come too late under 'otel-mlperf run': "
                 "set OTEL_MLPERF_* variables")  # fmt: skip
    run._recorder.stepping.set_next_number(step)
    if run._recorder.meta.rank == 0:
        add_facts(run._recorder.meta.run_folder, params, tags)
    taken_over, run._taken_over = run._taken_over, None
    taken_over()
    return run


def stop() -> None:
    """Ends the active run; does nothing without one."""
    if _current is not None:
        _current.stop()


def _begin(name: str, config: Config, params: dict[str, Any], tags: list[str], step: int) -> Run:
    from otel_mlperf.recorder.fork import watch_forks
    from otel_mlperf.recorder.launch import AgentWatch

    meta = _describe(name, config, params, tags)
    recorder = make_recorder(meta, config)
    section = _open_run(recorder)
    recorder.stepping.set_next_number(step)
    watch = AgentWatch(recorder.journal, meta, config)
    recorder.on_step.append(watch.look)
    recorder.on_step.append(_now_and_then(recorder))
    run = Run(name, recorder, section, watch)
    watch_forks()
    count_with(lambda: recorder.journal.count(names_of_words().INTERNAL_ERRORS))
    spans.activate(recorder)
    if config.provider == "install":
        from otel_mlperf.recorder.provider import install

        install()
    run._hook_in()
    watch.start()
    return run


def _describe(name: str, config: Config, params: dict[str, Any], tags: list[str]) -> JournalMeta:
    import socket

    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.recorder.cost import measure_cost
    from otel_mlperf.recorder.folder import count_restart, prepare_folder
    from otel_mlperf.recorder.identity import detect_identity

    who = detect_identity(config.run_id, _starts)
    if who.warning:
        log.warning("%s", who.warning)
    facts = {"params": params, "tags": [str(tag) for tag in tags], "world_size": who.world_size}
    folder = prepare_folder(config.dir, who.run_id, name, facts)
    resource = _parse_resource(config.resource)
    service = config.service_name or str(resource.pop(names.SERVICE_NAME, "")) or name
    return JournalMeta(
        run_id=who.run_id,
        run_name=name,
        run_folder=folder,
        service=service,
        host=socket.gethostname(),
        pid=os.getpid(),
        rank=who.rank,
        local_rank=who.local_rank,
        world_size=who.world_size,
        restart=count_restart(folder, who.rank, who.restart),
        run_span=int.from_bytes(os.urandom(8)) | 1,
        monotonic_ns=time.monotonic_ns(),
        unix_ns=time.time_ns(),
        cost_ns=measure_cost(config),
        resource=resource,
    )


def make_recorder(meta: JournalMeta, config: Config) -> Recorder:
    """A recorder with a journal of its own, in shared memory where there is room.

    Raises:
        JournalError: there is room nowhere.
    """
    from otel_mlperf.journal.folder import SUFFIX, fitting_rows, journal_folder, make_private
    from otel_mlperf.journal.writer import Journal
    from otel_mlperf.recorder.state import Recorder

    file = f"{meta.rank}-{os.getpid()}-{_file_number()}{SUFFIX}"
    shared = journal_folder(meta.run_id, meta.run_folder)
    on_disk = journal_folder(meta.run_id, meta.run_folder, "")
    for folder in dict.fromkeys((shared, on_disk)):
        try:
            make_private(folder)
            path = os.path.join(folder, file)
            return Recorder(Journal(path, fitting_rows(folder, config.rows), meta), meta, config)
        except JournalError as error:
            if folder == on_disk:
                raise
            say_once("%s; the journal goes to the run folder, where a slow disk can delay the "
                     "program", error)  # fmt: skip
    raise AssertionError  # the last folder returned or raised


def _open_run(recorder: Recorder) -> Section:
    from otel_mlperf.journal.layout import Kind
    from otel_mlperf.recorder.section import PARENTS

    track = recorder.tracks.current()
    number = recorder.register(names.SPAN_RUN, names.RUN, "")
    section, sid, now = recorder.make(number), recorder.meta.run_span, time.monotonic_ns()
    recorder.journal.put(now, 0, sid, 0, 0, track, number, Kind.BEGIN)
    recorder.open(section, sid, PARENTS.pack(0, sid, track), track, now)
    recorder.make_current(section)
    recorder.outer.append(section)
    return section


def _now_and_then(recorder: Recorder) -> Any:
    due = 0

    def call(now: int) -> None:
        nonlocal due
        recorder.values.publish()
        if now >= due:
            due = now + _NOW_AND_THEN_NS
            recorder.binding.watch_asyncio()
            spans.watch_torch()

    return call


def names_of_words() -> Any:
    """The header words; here because the journal's modules load msgspec."""
    from otel_mlperf.journal.layout import Word

    return Word


def _parse_resource(text: str) -> dict[str, str | int | float | bool]:
    from urllib.parse import unquote

    found: dict[str, str | int | float | bool] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            log.warning("OTEL_RESOURCE_ATTRIBUTES: %r is not 'name=value'; it is left out", pair)
            continue
        found[unquote(key.strip())] = unquote(value.strip())
    return found


def _script_name() -> str:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__").rpartition(".")[2]
    if _is_notebook():
        return "notebook"
    stem = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    return stem if stem not in ("", "-c", "-m") else "run"


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    get = getattr(shell, "get_ipython", None)
    return get is not None and type(get()).__name__ == "ZMQInteractiveShell"
