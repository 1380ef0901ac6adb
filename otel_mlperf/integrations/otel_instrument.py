"""Entry points through which ``opentelemetry-instrument`` and the Kubernetes Operator start a run.

Both provide a ``sitecustomize`` that loads the entry points of packages in every Python process
started under them. The program to record is therefore determined as under ``otel-mlperf run``.
Other installed instrumentation continues to work: this module replaces another distro or
configurator only if the user selects it.
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
    """Instrumentor that starts a run (entry point ``opentelemetry_instrumentor``)."""

    def instrument(self, **_: Any) -> None:
        """Start a run if this process runs a program to record; never raises."""
        _begin()

    def uninstrument(self, **_: Any) -> None:
        """End the run of this process."""
        from otel_mlperf.recorder.api.start import stop

        stop()

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        """Return no dependencies, because frameworks that are missing are simply not recorded."""
        return ()


class Configurator:
    """Configurator that installs our provider (entry point ``opentelemetry_configurator``).

    The provider is installed only if this configurator is selected
    (``OTEL_PYTHON_CONFIGURATOR=otel_mlperf``) or is the only one. Otherwise the other configurator
    configures its SDK as usual.
    """

    def configure(self, **about: Any) -> None:
        """Install this package's provider and start a run, or delegate to another configurator."""
        configurators = [] if os.environ.get(_CONFIGURATOR) == NAME else _other_configurators()
        if configurators:
            configurators[0].load()().configure(**about)
            return
        os.environ.setdefault(_PROVIDER, "install")
        _begin()


def distro() -> Any:
    """Return a distro that selects our configurator (entry point ``opentelemetry_distro``).

    Unless ``OTEL_PYTHON_DISTRO=otel_mlperf`` is set, return None, so the next distro is used.
    """
    if os.environ.get(_DISTRO) != NAME:
        return None
    # Imported by name: the caller has installed the package, but this package does not depend on
    # it.
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
            # Child processes are instrumented too: of these, only ranks are recorded, not helpers.
            request = Autostart(scope="ranks", python_path=os.environ.get("PYTHONPATH"))
            os.environ[VARIABLE] = request.as_text()
        record(program.name)


def _other_configurators() -> list[Any]:
    from importlib.metadata import entry_points

    return [entry for entry in entry_points(group=CONFIGURATORS) if entry.name != NAME]
