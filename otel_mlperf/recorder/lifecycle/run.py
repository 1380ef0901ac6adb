"""Run object, which ``start()`` returns: queries, results and the end of a run.

A process has at most one active run. Only starting a run may raise. Stopping is idempotent, limited
in time, and also happens at exit and after Ctrl-C.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.errors import NoSuchRun, OtelMlperfError, RunActive
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.attribute_values import safe_attributes
from otel_mlperf.recorder.core.faults import count_in, internal_error
from otel_mlperf.recorder.core.scrub import describe_exception, is_failure
from otel_mlperf.redaction import IN_PROCESS
from otel_mlperf.upper_parts import upper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from otel_mlperf.recorder.instruments.marks import Mark
    from otel_mlperf.recorder.lifecycle.agent_launch import AgentWatch
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run_stats import RunStats
    from otel_mlperf.recorder.lifecycle.section_stats import Stats
    from otel_mlperf.recorder.lifecycle.stats_source import Known
    from otel_mlperf.recorder.sections.section import Section


_NOTHING = "nothing was recorded (never started, or recording is off)"
_SUMMARY_S = 60.0


class Run:
    """An active or finished run, which ``start()`` returns; a context manager that ends it."""

    def __init__(
        self,
        name: str,
        recorder: Recorder | None = None,
        section: Section | None = None,
        watch: AgentWatch | None = None,
    ) -> None:
        self.name = name
        """Name of the run."""
        self._recorder = recorder
        self._section = section
        self._watch = watch
        self._result: dict[str, Any] = {}
        self._is_open = recorder is not None
        self._pid = os.getpid()
        self._at_end: Known | None = None
        self._is_exit = False
        self._failure: list[str] | None = None
        self._hook: Any = None
        self._taken_over: Callable[[], None] | None = None
        self.before_end: list[Callable[[], None]] = []
        """Functions called when the run ends, while it still records."""
        self.after_end: list[Callable[[], None]] = []
        """Functions called after the run has ended and its journal is closed."""
        if recorder is not None:
            # Import it now: a program that ends because it has run out of file descriptors could
            # not import it then.
            from otel_mlperf.recorder.lifecycle import closing  # noqa: F401

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process, an unpickled run records nothing: the run exists only in this process.
        return type(self), (self.name,)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    @property
    def id(self) -> str:
        """The run's id, the same on all ranks; empty if nothing is recorded."""
        return self._recorder.meta.run_id if self._recorder else ""

    @property
    def path(self) -> Path | None:
        """The run folder; None if nothing is recorded."""
        from pathlib import Path

        return Path(self._recorder.meta.run_folder) if self._recorder else None

    @property
    def is_active(self) -> bool:
        """True if the run records in this process; False in a forked child."""
        return self._is_open and self._pid == os.getpid()

    @property
    def step(self) -> int:
        """Number of the open or next training step; set it after a rollback."""
        if self._recorder is None:
            return 0
        step = self._recorder.parents.current_step(names.TRAIN)
        return step.number if step else self._recorder.stepping.next_number()

    @step.setter
    def step(self, number: int) -> None:
        if self._recorder is not None:
            self._recorder.stepping.set_next_number(int(number))

    def result(self, **values: Any) -> None:
        """Record results of the run for comparisons, e.g. ``run.result(accuracy=0.93)``."""
        try:
            self._result.update(IN_PROCESS.values(safe_attributes(values)))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def stop(self) -> None:
        """End the run; calling it again does nothing."""
        self._stop(None)

    def lend(self, taken_over: Callable[[], None]) -> None:
        """Let the program's own ``start()`` continue this run, which was started automatically.

        Args:
            taken_over: called when the program's ``start()`` takes over the run.
        """
        self._taken_over = taken_over

    def summary(self) -> dict[str, Any]:
        """Return the summary so far, as ``otel-mlperf summary --json`` prints it; never raises."""
        import msgspec

        if self._recorder is None:
            return self._no_summary("not recorded", _NOTHING)
        try:
            summary: dict[str, Any] = msgspec.json.decode(self._read("--json"))
        except (OtelMlperfError, ValueError) as error:
            return self._no_summary("unknown", str(error))
        return summary

    def stats(self, since: str | Mark = "start") -> Stats:
        """Return the durations of this process's ended sections; never raises.

        ::

            stats = run.stats(since="epoch")
            stats["forward"].mean_ns, stats["forward"].p95_ns
            print(stats)

        Statistics of all threads are exact. The call costs about a millisecond, because it reads no
        run folder and waits for no process. A forked child gets its own sections. After the run,
        the result is that of the run's end; while nothing is recorded, it is empty. ``missing``
        lists data that is not included.

        Args:
            since: start of the period: ``start`` (of the run), ``epoch`` (start of the current
                epoch), ``last`` (last call of this method), or a result of ``mark()``.
        """
        return self._stats().read(since)

    def mark(self, name: str = "mark") -> Mark:
        """Set a mark for charts and for ``stats(since=…)``, which accepts the newest 16 marks.

        Args:
            name: description of the event; use few different names, without numbers.
        """
        return self._stats().mark(name)

    def _stats(self) -> RunStats:
        from otel_mlperf.recorder.lifecycle.run_stats import RunStats

        return RunStats(self.name, self._recorder, self._pid, self._at_end)

    def hot(self, section: str | None = None) -> Any:
        """Return the functions and lines of profiled section calls as a printable table.

        ::

            with om.start("search") as run:
                om.span("search", profile="calls")(search)(position)
                print(run.hot())

        The result's attribute ``sections`` contains the data, as ``otel-mlperf summary --functions
        --json`` prints it. The result includes the ended calls of all processes of the run on this
        host.

        Args:
            section: name of the section to return (default: all sections).

        Raises:
            StoreError: a file of the run cannot be read.
            NoSuchRun: nothing was recorded.
        """
        if self.path is None:
            raise NoSuchRun(
                f"reading the profiles of {self.name}: nothing is recorded in this process"
            )
        return upper("read_hot")(self.path, section)

    def __str__(self) -> str:
        return str(self.stats())

    def _no_summary(self, outcome: str, why: str) -> dict[str, Any]:
        known = {"id": self.id, "name": self.name, "path": str(self.path or "")}
        empty: dict[str, Any] = upper("no_summary")(**known, outcome=outcome, missing=[why])
        return empty

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: ``stats()`` (of an active run), summary, findings, charts."""
        import html

        table = self.stats()._repr_html_() if self.is_active else ""
        try:
            return table + self._read("--html")
        except OtelMlperfError as error:
            return f"{table}<pre>{html.escape(str(error))}</pre>"

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

        from otel_mlperf.recorder.lifecycle.closing import summary_environ

        if self._recorder is None:
            raise OtelMlperfError(f"reading the run's summary: {_NOTHING}")
        folder = self._recorder.meta.run_folder
        try:
            child = subprocess.run(
                [sys.executable, "-P", "-m", "otel_mlperf", "summary", folder, *options],
                env=summary_environ() | {"NO_COLOR": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=_SUMMARY_S,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise OtelMlperfError(f"reading the summary of {folder}: {error}") from error
        if child.returncode:
            raise OtelMlperfError(f"reading the summary of {folder}: {child.stderr.strip()}")
        return child.stdout

    def _stop(self, error: BaseException | None) -> None:
        if not self.is_active:
            return
        self._is_open = False
        try:
            self._close(error)
        except Exception as problem:  # noqa: BLE001 - recording never raises
            internal_error(problem)

    def _stop_at_exit(self) -> None:
        self._is_exit = True
        self.stop()

    def _close(self, error: BaseException | None) -> None:
        from otel_mlperf.recorder.lifecycle import closing

        recorder, section = self._recorder, self._section
        assert recorder is not None
        assert section is not None
        deadline = time.monotonic() + closing.patience_s()
        self._unhook()
        _call_all(self.before_end)
        failure = self._failure
        if error is not None and is_failure(error):
            recorder.sections.notify_failure(section, error)
            failure = describe_exception(error, with_text=recorder.config.exception_text)
        # In this order:
        # 1. New sections no longer find the recorder.
        # 2. Pending values arrive.
        # 3. Sections of other threads are redirected to scratch memory: otherwise they would write
        #    a second row after being closed below.
        # 4. Open sections and the journal are closed, and the recorder is retired.
        recording.activate(None)
        recorder.values.finish(time.monotonic_ns() + 200_000_000)
        recorder.sections.binding.retire()
        result = {f"{names.RESULT}{key}": value for key, value in self._result.items()}
        closing.close_sections(recorder, section, failure, result)
        # Not at exit: no code can query the snapshot then, and importing modules would make Python
        # forget that an interrupt has ended the program, which determines the exit code.
        self._at_end = None if self._is_exit else _known_at_end(recorder)
        head = recorder.journal.close()
        recorder.retire()
        count_in(None)
        try:
            closing.await_end(recorder, self._watch, head, deadline)
            _call_all(self.after_end)
        except KeyboardInterrupt:
            # The run is closed. Raise the interrupt, because it must end a sweep of runs, not only
            # this run; unless an earlier interrupt is already ending the program.
            if not failure or failure[0] != KeyboardInterrupt.__name__:
                raise

    # -- failures of a script without ``with`` ---------------------------------------------------

    def hook_in(self) -> None:
        """Install hooks that record the exception that ends the program and end the run at exit."""
        before = sys.excepthook

        def hook(kind: Any, error: Any, trace: Any) -> None:
            self._note_failure(error)
            before(kind, error, trace)

        self._hook = (hook, before)
        sys.excepthook = hook
        atexit.register(self._stop_at_exit)

    def _unhook(self) -> None:
        if self._hook is not None and sys.excepthook is self._hook[0]:
            sys.excepthook = self._hook[1]
        atexit.unregister(self._stop_at_exit)

    def _note_failure(self, error: Any) -> None:
        try:
            recorder = self._recorder
            if isinstance(error, RunActive):
                return  # a second ``start()`` has failed, not this run
            if recorder is not None and self._is_open and is_failure(error):
                if self._section is not None:
                    recorder.sections.notify_failure(self._section, error)
                with_text = recorder.config.exception_text
                self._failure = describe_exception(error, with_text=with_text)
        except Exception as problem:  # noqa: BLE001 - the program's exception propagates
            internal_error(problem)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        try:
            call()
        except Exception as problem:  # noqa: BLE001 - the run ends all the same
            internal_error(problem)


def _known_at_end(recorder: Recorder) -> Known | None:
    """Return the snapshot for ``stats()`` after the end; None if its module cannot be imported."""
    try:
        from otel_mlperf.recorder.lifecycle.stats_source import copy_at_end
    except (ImportError, OSError) as error:
        raise_foreign(error)
        return None
    return copy_at_end(recorder)
