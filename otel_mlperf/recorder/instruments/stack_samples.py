"""Sampler of the training loop's stack, which counts samples by lines of the program.

A thread of the recorder samples the loop thread ten times a second, at uneven intervals so that no
loop synchronises with it. It counts the innermost line of the program, together with the name of
the function that the line calls. Samples in steps, between steps and before the first step (set-up)
are counted separately. A sample stops the loop for 12 µs and two thread switches: less than 0.1 %
of the time. The sampler gets the GIL when a call of the loop thread releases it, so a sample shows
the line of that call, not the following one.

A C function has no frame, so its name is read from bytecode. An instruction that loads the called
object has the same source position as the call (``loss`` in ``loss.item()``). The last such
instruction before the call loads the function's name (``item``).
"""

from __future__ import annotations

import dis
import os
import signal
import sys
import sysconfig
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from otel_mlperf.names import Metric
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.cells import Cells, Labels


ITERATION: Final = "iteration"
"""Name of the call by which a ``for`` loop requests the next item."""
WITH: Final = "with"
"""Name of the call that enters a context manager in C, such as a lock, which has no frame."""
_Start = tuple["int | None", "int | None"]
"""Line and column of an instruction's source."""
_CALLS: Final = ("CALL", "PRECALL")  # Python 3.11: PRECALL may make the call
_LOADS: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")


def called_name(code: CodeType, at: int) -> tuple[int, str]:
    """Return the line of the instruction at offset ``at``, and the name of the called function.

    The line is 0 if the code has no line numbers; the name is empty if nothing is called.
    """
    loaded: dict[_Start, str] = {}
    start: _Start = (None, None)
    name = ""
    for one in dis.get_instructions(code):
        if one.offset > at:
            break  # ``at`` may also be the offset of the caches behind an instruction
        positions = one.positions
        start = (positions.lineno, positions.col_offset) if positions else (None, None)
        name = loaded.get(start, "") if one.opname.startswith(_CALLS) else ""
        if one.opname == "FOR_ITER":
            name = ITERATION
        elif one.opname == "BEFORE_WITH":
            name = WITH
        elif one.opname.startswith(_LOADS):
            loaded[start] = str(one.argval)
    return start[0] or 0, name


THREAD_NAME: Final = "otel_mlperf samples"
INTERVAL_S: Final = 0.1
"""Mean interval between samples; each interval is 0.5 to 1.5 times as long."""
_GOLDEN: Final = 0.618033988749895
"""Golden ratio: the fractional parts of its multiples are evenly spread, without random numbers."""
_MAX_PLACES: Final = 200
"""Maximum number of label sets of each metric; samples of further places get no labels."""
_MAX_FRAMES: Final = 200
_MAX_HELD: Final = 6_000
"""Maximum number of samples of one inferred validation: about ten minutes."""
_INSTALLED: Final = ("site-packages", "dist-packages")
_STDLIB: Final = os.path.join(sysconfig.get_paths()["stdlib"], "")
_PACKAGE: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")
_TORCH: Final = "torch"
_LOADING: Final = os.path.join("torch", "utils", "data", "")


class _Place(NamedTuple):
    """Place of a sample; ``instruction`` distinguishes calls in one line.

    ``package`` is the library that the line called, or empty. ``within`` is ``loading`` if torch's
    data loader called the line, ``torch`` if other code of torch did, otherwise empty.
    """

    code: CodeType
    instruction: int
    package: str
    within: str


class StackSamples:
    """Sampler of the loop thread's stack, which counts samples in cells."""

    def __init__(
        self,
        cells: Cells,
        is_in_step: Callable[[], bool],
        is_training: Callable[[], bool],
        ident: int,
        *,
        validated_ns: Callable[[], int | None] = int,
        is_from_start: bool = False,
    ) -> None:
        """Initialise the sampler without starting it.

        Args:
            cells: cells in which samples are counted.
            is_in_step: returns whether a step is open.
            is_training: returns whether the current phase is training.
            ident: ident of the sampled thread.
            validated_ns: returns None while an inferred validation is open, otherwise the monotonic
                end time of the last one, 0 if there was none. The end is known only afterwards:
                samples are held until then, and those after the end are between steps.
            is_from_start: whether the run has just started, so that samples before the first step
                are set-up.
        """
        self._before = names.STACK_SAMPLES_SET_UP if is_from_start else None
        self._cells, self._is_in_step, self._ident = cells, is_in_step, ident
        self._is_training, self._has_started = is_training, False
        self._validated_ns = validated_ns
        self._held: list[tuple[int, _Place | None]] = []
        """Times and places of the samples since the start of an inferred validation."""
        self._labels: dict[tuple[Metric, _Place], Labels] = {}
        self._known: dict[Metric, set[Labels]] = {}
        self._packages: dict[str, str] = {}
        self._end = threading.Event()

    def start(self) -> None:
        """Sample in a new thread until ``end()``."""
        threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()

    def end(self) -> None:
        """Stop sampling."""
        self._end.set()

    def _run(self) -> None:
        # Signals must be handled by the program's threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            spread = 0.0
            while not self._end.wait(INTERVAL_S * (0.5 + spread)):
                spread = (spread + _GOLDEN) % 1.0
                if (metric := self._counted_as()) is not None:
                    self._settle()
                    self.look(metric)
                elif self._validated_ns() is None:
                    self._hold()
        except Exception as error:  # noqa: BLE001 - a thread of the recorder must not print
            internal_error(error)

    def _counted_as(self) -> Metric | None:
        """Return the metric for a sample at this moment; None if no sample should be taken."""
        if self._is_in_step():
            self._has_started = True
            return names.STACK_SAMPLES
        if not self._is_training():
            return None
        return names.STACK_SAMPLES_BETWEEN if self._has_started else self._before

    def look(self, metric: Metric) -> None:
        """Take one sample of the thread and count the sample in ``metric``."""
        self._count(self._find(sys._current_frames().get(self._ident)), metric)

    def _hold(self) -> None:
        if len(self._held) < _MAX_HELD:
            place = self._find(sys._current_frames().get(self._ident))
            self._held.append((time.monotonic_ns(), place))

    def _settle(self) -> None:
        held, self._held = self._held, []
        end_ns = self._validated_ns() or 0
        for at_ns, place in held:
            if at_ns > end_ns:
                self._count(place, names.STACK_SAMPLES_BETWEEN)

    def _count(self, place: _Place | None, metric: Metric) -> None:
        labels = self._labels.get((metric, place)) if place is not None else ()
        if labels is None and place is not None:
            labels = self._labels[metric, place] = self._labels_of(place, metric)
        self._cells.add(metric.name, metric.unit, 1, labels or ())

    def _find(self, frame: FrameType | None) -> _Place | None:
        package, within, found = "", "", None
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            of = self._package(frame.f_code.co_filename)
            if found is None and not of:
                found = frame.f_code, frame.f_lasti
            elif found is None:
                package = of
            elif of == _TORCH:
                is_loading = _LOADING in frame.f_code.co_filename
                within = "loading" if is_loading else within or _TORCH
            frame = frame.f_back
        return None if found is None else _Place(*found, package, within)

    def _package(self, path: str) -> str:
        package = self._packages.get(path)
        if package is None:
            package = self._packages[path] = package_of(path)
        return package

    def _labels_of(self, place: _Place, metric: Metric) -> Labels:
        code = place.code
        line, call = called_name(code, place.instruction)
        labels = (
            (names.CODE_FILE, os.path.basename(code.co_filename)),
            (names.CODE_FUNCTION, code.co_qualname),
            (names.CODE_LINE, str(line or code.co_firstlineno)),
            (names.STACK_CALL, call),
            (names.STACK_PACKAGE, place.package),
            (names.STACK_WITHIN, place.within),
        )
        known = self._known.setdefault(metric, set())
        if labels not in known:
            if len(known) >= _MAX_PLACES:
                return ()
            known.add(labels)
        return labels


def package_of(path: str) -> str:
    """Return the top-level package of a file, by its path; empty for a file of the program.

    Files of the standard library and of installed packages (folder ``site-packages``) are no files
    of the program.
    """
    if path.startswith(_PACKAGE):
        return "otel_mlperf"
    parts = path.split(os.sep)
    for folder in _INSTALLED:
        if folder in parts[:-1]:
            return _stem(parts[len(parts) - parts[::-1].index(folder)])
    if path.startswith(_STDLIB):
        return _stem(path[len(_STDLIB) :].split(os.sep, maxsplit=1)[0])
    return "python" if path.startswith("<frozen") else ""


def _stem(name: str) -> str:
    return name.removesuffix(".py")


def watch_stacks(
    recording: Recording,
    cells: Cells,
    is_in_step: Callable[[], bool],
    is_training: Callable[[], bool],
    *,
    validated_ns: Callable[[], int | None],
    is_from_start: bool,
) -> None:
    """Sample the calling thread, which runs the loop, until the recording is retired.

    Arguments: see ``StackSamples``.
    """
    ident = threading.get_ident()
    samples = StackSamples(
        cells, is_in_step, is_training, ident,
        validated_ns=validated_ns, is_from_start=is_from_start,
    )  # fmt: skip
    recording.at_retire.append(samples.end)
    samples.start()
