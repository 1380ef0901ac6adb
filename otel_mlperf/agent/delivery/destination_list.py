"""List of the destinations to which this agent delivers."""

from __future__ import annotations

import logging
import re
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, get_args

from otel_mlperf.agent.delivery import (
    mlflow_destination,
    otlp_destination,
    provider_destination,
    store_destination,
    tensorboard_destination,
    trackio_destination,
    wandb_destination,
)
from otel_mlperf.agent.delivery.destination import (
    FORMS,
    NOT_LOADED,
    Destination,
    Refused,
    Signal,
    TryLater,
    account_of,
    report_unusable,
)
from otel_mlperf.agent.delivery.store_destination import STORE
from otel_mlperf.errors import ConfigError
from otel_mlperf.ids import safe_name
from otel_mlperf.settings.tracker_list import MLFLOW, TENSORBOARD, TRACKIO, WANDB, unusable

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Form

_log = logging.getLogger("otel_mlperf.agent")
BUILT_IN: Final = (store_destination.make, otlp_destination.make, provider_destination.make)
TRACKERS: Final = {
    TENSORBOARD: tensorboard_destination.make,
    MLFLOW: mlflow_destination.make,
    WANDB: wandb_destination.make,
    TRACKIO: trackio_destination.make,
}
"""Factories of the trackers in ``tracker_list``, called for each configured tracker."""
GROUP: Final = "otel_mlperf.destinations"
"""Group of entry points that are factories of destinations, as in ``BUILT_IN``."""
_NAME: Final = re.compile("[a-z][a-z0-9_]*")


class NotLoaded(Destination):
    """Substitute for a destination that could not be created: all of its items are lost.

    If the signals of the missing destination are unknown, the substitute accepts all signals, so
    that the accounts show the loss.
    """

    def __init__(self, name: str, signals: tuple[Signal, ...] = get_args(Signal)) -> None:
        self.name, self.signals = name, signals

    def accept(self, batch: Batch) -> Refused:
        """Refuse the batch as ``not_loaded``."""
        return Refused(NOT_LOADED)


class Withheld(Destination):
    """Placeholder for a destination that is named in the run folder, but not by the caller.

    The destination's batches are created and counted, and stay in the outbox until the caller names
    the destination.
    """

    def __init__(self, name: str, signals: tuple[Signal, ...], form: Form) -> None:
        self.name, self.signals, self.form = name, signals, form

    def accept(self, batch: Batch) -> TryLater:
        """Return ``TryLater``, so that the batch stays in the outbox."""
        return TryLater(
            f"the caller specifies no destination for {account_of(batch.signal, self.name)}"
        )


def make_destinations(site: DestinationContext) -> list[Destination]:
    """Create the configured destinations; ``NotLoaded`` replaces any that cannot be created."""
    made: list[Destination] = [new for make in BUILT_IN if (new := make(site)) is not None]
    made += [
        Withheld("otlp", (signal,), "otlp")
        for signal in ("spans", "metrics")
        if account_of(signal, "otlp") in site.options.withheld
    ]
    made += [
        _tracker(name, make, site)
        for name, make in TRACKERS.items()
        if name in site.options.trackers
    ]
    made += [
        _exporter(name, signal, site)
        for signal, names in site.options.exporters.items()
        for name in names
    ]
    # Sorted, because batches are numbered in this order and a replay must get the same numbers.
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        destination = _load(point, site, {known.name for known in made})
        if destination is not None:
            made.append(destination)
    return made


def _tracker(
    name: str, make: Callable[[DestinationContext], Destination], site: DestinationContext
) -> Destination:
    if account_of("scalars", name) in site.options.withheld:
        return Withheld(name, ("scalars",), "items")
    try:
        if lacks := unusable(name, site.options.environ):
            raise ConfigError(*lacks)
        return make(site)
    except Exception as error:  # noqa: BLE001 - what is wrong with one costs no other
        report_unusable(f"destination {name!r}", error)
        return NotLoaded(name, ("scalars",))


def _exporter(name: str, signal: Signal, site: DestinationContext) -> Destination:
    account = _account_name(name)
    if account_of(signal, name) in site.options.withheld:
        return Withheld(account, (signal,), FORMS[signal])
    try:
        # Imported here, because it loads the OpenTelemetry SDK.
        from otel_mlperf.agent.delivery.sdk_destination import find_exporter

        return find_exporter(site, signal, name, account)
    except (ConfigError, ImportError) as error:
        report_unusable(f"exporter {name} for {signal}", error)
        return NotLoaded(account, (signal,))


def _account_name(name: str) -> str:
    account = re.sub("[^a-z0-9_]", "_", safe_name(name).lower())
    return f"sdk_{account}" if account in (STORE, *TRACKERS) else account


def _load(point: EntryPoint, site: DestinationContext, taken: set[str]) -> Destination | None:
    try:
        destination: Destination | None = point.load()(site)
        if destination is not None:
            _check(destination, taken)
    except Exception:  # noqa: BLE001 - somebody else's code, and training goes on whatever it does
        _log.exception("destination %r cannot be loaded; its data will be dropped", point.name)
        return NotLoaded(_account_name(point.name))
    return destination


def _check(destination: Destination, taken: set[str]) -> None:
    name, signals = destination.name, destination.signals
    if not _NAME.fullmatch(name) or name in taken:
        raise ValueError(
            f"creating destination {name!r}: a name consists of lower-case letters, digits and "
            f"underscores, and differs from {sorted(taken)}; rename the destination"
        )
    if not signals or not set(signals) <= set(get_args(Signal)):
        raise ValueError(
            f"creating destination {name!r}: its signals are {signals!r}; expected one or more of "
            f"{get_args(Signal)}"
        )
