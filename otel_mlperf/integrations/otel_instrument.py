"""Entry points by which ``opentelemetry-instrument`` and the Kubernetes Operator start a run.

Both have a ``sitecustomize`` that loads the entry points of packages in every Python process below
them. So the program to record is determined as it is under ``otel-mlperf run``. Other installed
instrumentation continues to work: this module replaces no other distro or configurator unless the
user names it instead.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final

from otel_mlperf.integrations.autostart import begin, record
from otel_mlperf.integrations.start_request import (
    VARIABLE,
    Autostart,
    detect_program,
    read_autostart,
)

NAME: Final = "otel_mlperf"
"""Name of the entry points."""
CONFIGURATORS: Final = "opentelemetry_configurator"
_CONFIGURATOR: Final = "OTEL_PYTHON_CONFIGURATOR"
_DISTRO: Final = "OTEL_PYTHON_DISTRO"
_PROVIDER: Final = "OTEL_MLPERF_PROVIDER"


class Instrumentor:
    """Entry point of ``opentelemetry_instrumentor``: records the program."""

    def instrument(self, **_: Any) -> None:
        """Start a run, if this process is a program to record; never raises."""
        _begin()

    def uninstrument(self, **_: Any) -> None:
        """End the run."""
        import otel_mlperf

        otel_mlperf.stop()

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        """Return no dependencies: missing packages are simply not recorded."""
        return ()


class Configurator:
    """Entry point of ``opentelemetry_configurator``: replaces an SDK.

    It does so only if it is named (``OTEL_PYTHON_CONFIGURATOR=otel_mlperf``) or there is no other.
    Otherwise the other configurator configures its SDK as usual.
    """

    def configure(self, **about: Any) -> None:
        """Install this package's provider, with a run to record into; or delegate."""
        others = [] if os.environ.get(_CONFIGURATOR) == NAME else _other_configurators()
        if others:
            others[0].load()().configure(**about)
            return
        os.environ.setdefault(_PROVIDER, "install")
        _begin()


def distro() -> Any:
    """Entry point of ``opentelemetry_distro``: selects this package's configurator.

    It returns None if it is not named (``OTEL_PYTHON_DISTRO=otel_mlperf``): the next distro is
    used.
    """
    if os.environ.get(_DISTRO) != NAME:
        return None
    # The caller has installed it; this package does not require it.
    base = import_module("opentelemetry.instrumentation.distro").BaseDistro
    return type("Distro", (base,), {"_configure": _choose_ours})()


def _choose_ours(_distro: Any, **_: Any) -> None:
    os.environ.setdefault(_CONFIGURATOR, NAME)


def _begin() -> None:
    try:
        _begin_once()
    except Exception as error:  # noqa: BLE001 - the program and other tools run all the same
        print(f"otel-mlperf: not recorded: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201


def _begin_once() -> None:
    from otel_mlperf.recorder.api.start import current

    run = current()
    if run is not None and run.is_active:
        return
    if read_autostart(os.environ) is not None:
        begin()
        return
    program = detect_program(sys.argv, sys.orig_argv)
    if program.is_recorded:
        if "RANK" not in os.environ:
            # Processes that it starts are instrumented, too: ranks are recorded, helpers belong to
            # it.
            told = Autostart(scope="ranks", python_path=os.environ.get("PYTHONPATH"))
            os.environ[VARIABLE] = told.as_text()
        record(program.name)


def _other_configurators() -> list[Any]:
    from importlib.metadata import entry_points

    return [entry for entry in entry_points(group=CONFIGURATORS) if entry.name != NAME]
