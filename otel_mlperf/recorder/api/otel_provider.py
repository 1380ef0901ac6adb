"""Installation of OpenTelemetry providers that record other libraries' signals in the journal.

They are installed only on request (``provider="install"``), because the choice belongs to the
application: the API accepts one provider of each kind for the lifetime of a process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace

from otel_mlperf.recorder.api.otel_meter import JournalMeterProvider
from otel_mlperf.recorder.api.otel_observed import watch
from otel_mlperf.recorder.api.otel_tracer import JournalTracerProvider
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.settings.declared_config import PROPAGATORS, VARIABLES, declare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.recorder.lifecycle.run import Run

_PROXIES: Final = ("ProxyTracerProvider", "_ProxyMeterProvider")
"""Classes of the proxies that the API uses before a provider is set."""


def install(run: Run) -> None:
    """Install the recorder's tracer and meter providers, where the application has none."""
    if _is_free(trace.get_tracer_provider(), JournalTracerProvider, "tracer", "spans"):
        trace.set_tracer_provider(JournalTracerProvider())
    if _is_free(metrics.get_meter_provider(), JournalMeterProvider, "meter", "metrics"):
        metrics.set_meter_provider(JournalMeterProvider())
    _install_propagators(os.environ)
    watch(run)


def _is_free(provider: Any, ours: type[Any], kind: str, signals: str) -> bool:
    if type(provider).__name__ in _PROXIES:
        return True
    if not isinstance(provider, ours):
        warn_once(f"provider='install': the application already has a {kind} provider, which is "
                  f"kept; {signals} of other libraries go to that provider")  # fmt: skip
    return False


def _install_propagators(environ: Mapping[str, str]) -> None:
    """Install the propagators that a declarative configuration file names.

    The API itself reads only the variable ``OTEL_PROPAGATORS``.
    """
    if not any(environ.get(name) for name in VARIABLES):
        return
    names = [name for name in declare(environ)[0].get(PROPAGATORS, "").split(",") if name]
    if not names:
        return
    from importlib.metadata import entry_points

    from opentelemetry import propagate
    from opentelemetry.propagators.composite import CompositePropagator

    offered = {entry.name: entry for entry in entry_points(group="opentelemetry_propagator")}
    for name in names:
        if name not in offered and name != "none":
            warn_once(f"the propagator {name!r:.40} is not installed and is ignored")
    chosen = [offered[name].load()() for name in names if name in offered]
    propagate.set_global_textmap(CompositePropagator(chosen))
