"""Sensor thread with a deadline, so that a sensor that hangs does not block its caller.

Calls of a driver's library may hang, for seconds or forever. Such a sensor therefore runs in its
own daemon thread. The caller starts a pass, continues with other work and fetches the result later.
A pass that misses its deadline has no result and is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Literal

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.sensors.measurement import Sensor

_log = logging.getLogger("otel_mlperf.sensors")

DEADLINE_S: Final = 1.0


class TimedSensor:
    """Sensor in a separate thread, with a deadline per pass; not thread-safe itself.

    ``begin`` and ``take`` never block; ``read`` blocks at most until the deadline. A result after
    the deadline is dropped, because it would be attributed to the time of a later pass. While a
    pass hangs, no further pass is started; each attempt counts as late.
    """

    def __init__(
        self,
        name: str,
        sensor: Sensor,
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.late = 0
        """Number of passes without a result within the deadline, including failed passes."""
        self._name = name
        self._sensor = sensor
        self._deadline_s = deadline_s
        self._clock = clock
        self._state: Literal["idle", "waiting", "refused"] = "idle"
        self._began_s = 0.0
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._answered = threading.Event()
        self._answered.set()
        self._answer: tuple[list[Measurement] | None, float] = ([], 0.0)
        self._broken = False
        self._thread: threading.Thread | None = None

    def begin(self) -> bool:
        """Start a pass; return False if the previous pass still hangs."""
        if not self._answered.is_set():
            self._state = "refused"
            return False
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"otel-mlperf {self._name}", daemon=True
            )
            self._thread.start()
        self._state, self._began_s = "waiting", self._clock()
        # Must be cleared before the thread is woken, or an immediate result would be lost.
        self._answered.clear()
        self._wanted.put(True)
        return True

    def take(self) -> list[Measurement] | None:
        """Return the measurements, the pass's duration and the count of late passes, only once.

        Return None if the pass has not ended, or if the measurements were already returned.
        """
        if self._state == "idle":
            return None
        # A result that arrived after the deadline is late even if this call comes later still.
        if self._state == "waiting" and self._answered.is_set():
            measured, took_s = self._answer
            return self._settle(measured if took_s <= self._deadline_s else None, took_s)
        age_s = self._clock() - self._began_s
        if self._state == "refused" or age_s > self._deadline_s:
            return self._settle(None, age_s)
        return None

    def read(self) -> list[Measurement]:
        """Run one pass and return its measurements; block at most until the deadline."""
        self.begin()
        return self.finish()

    def finish(self) -> list[Measurement]:
        """Return the result of the started pass; block at most until its deadline."""
        if self._state == "waiting":
            remaining_s = self._began_s + self._deadline_s - self._clock()
            self._answered.wait(max(0.0, remaining_s))
        measured = self.take()
        return self._settle(None, self._deadline_s) if measured is None else measured

    def close(self) -> None:
        """Stop the thread and close the sensor.

        A thread that hangs is abandoned; it closes the sensor if the hanging call returns.
        """
        if self._thread is not None:
            self._wanted.put(False)
            if self._answered.is_set():
                self._thread.join(self._deadline_s)

    def _settle(self, measured: list[Measurement] | None, took_s: float) -> list[Measurement]:
        self._state = "idle"
        self.late += measured is None
        labels = {names.SAMPLER: self._name}
        return [
            *(measured or ()),
            Measurement(names.SAMPLER_DURATION.name, labels, took_s),
            Measurement(names.SAMPLER_LATE.name, labels, self.late),
        ]

    def _work(self) -> None:
        while self._wanted.get():
            began_s = self._clock()
            measured = self._pass()
            # Set before the event, so that a caller that sees the event reads a complete answer.
            self._answer = (measured, self._clock() - began_s)
            self._answered.set()
        # Closed here instead of in close(), because a driver's library must be used by one thread.
        self._sensor.close()

    def _pass(self) -> list[Measurement] | None:
        try:
            return self._sensor.read()
        except Exception:  # noqa: BLE001 - whatever a vendor's library raises must not end the readings
            if not self._broken:
                _log.warning("reading the %s sensor failed", self._name, exc_info=True)
            self._broken = True
            return None
