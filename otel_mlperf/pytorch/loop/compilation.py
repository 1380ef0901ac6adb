"""Sections for the compilations of ``torch.compile``, and their durations.

TorchDynamo calls callbacks before and after each outermost compilation. Between both calls a
section is open, inside the section that waits for the compilation. The callbacks are not part of
the compiled code. An older torch without such callbacks has no such sections.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.pytorch.loop.weave import weave
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error, warn_once

if TYPE_CHECKING:
    from types import ModuleType

_GATE: Final = "_otel_mlperf_compilation"


class CompilationWatch(AbstractContextManager[None]):
    """Recorder of one section for each compilation.

    Args:
        handler: TorchDynamo's callback handler, with a list of start and of end callbacks.
    """

    busy: Final = False

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._section: Any = None

    def watch(self) -> None:
        """Register the callbacks; a second call has no effect."""
        handler = self._handler
        if self.begin not in handler.start_callbacks:
            handler.register_start_callback(self.begin)
            handler.register_end_callback(self.end)

    def begin(self, *about: Any) -> None:
        """Open a section, because a compilation starts; never raises.

        Args:
            about: one object with id and reason of the compilation; an older torch passes none.
        """
        try:
            recorder = active()
            if recorder is None:
                return
            choice = recorder.choice.of(names.SPAN_COMPILE, names.COMPILE)
            if choice == "aggregate":
                self._section = recorder.aggregated.make(names.SPAN_COMPILE, names.COMPILE)
                self._section.__enter__()
            elif choice == "record":
                self._section = recorder.sections.enter(
                    names.SPAN_COMPILE, names.COMPILE, _attributes(*about)
                )
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def end(self, *_about: Any) -> None:
        """Close the section of a compilation that has ended or failed; never raises."""
        section, self._section = self._section, None
        try:
            if section is not None:
                section.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def of(self, _subject: object) -> CompilationWatch:
        """Return the gate for ``torch._dynamo.reset``, which drops the callbacks.

        At the end of that call, the gate registers the callbacks again.
        """
        return self

    def __exit__(self, *_failure: object) -> None:
        try:
            self.watch()
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


_watch: CompilationWatch | None = None


def watch_compilation(dynamo: ModuleType) -> None:
    """Start observing compilations; never raises.

    Args:
        dynamo: ``torch._dynamo``, which has been imported.
    """
    global _watch
    try:
        if _watch is None:
            _watch = CompilationWatch(dynamo.callback_handler)
            _watch.watch()
            weave(dynamo.reset, _watch, _GATE)
    except Exception as error:  # noqa: BLE001 - a torch that is built otherwise compiles all the same
        raise_foreign(error)
        warn_once("compilation cannot be observed with this version of torch: %s", error)


def _attributes(about: Any = None, *_: object) -> dict[str, str]:
    """Return id and reason of a compilation. The id ``1/2`` is the third compilation of frame 1."""
    number, reason = getattr(about, "compile_id", None), getattr(about, "callback_trigger", None)
    attributes = {names.COMPILE_ID: number} if isinstance(number, str) else {}
    if isinstance(name := getattr(reason, "name", None), str):
        attributes[names.COMPILE_REASON] = name.lower()
    return attributes
