"""Sensor thread with a deadline, so that a reader that hangs blocks no caller.

A library that talks to a driver can stop answering, for ten seconds or for good. Its sensor
therefore runs in a daemon thread of its own. The caller starts a pass, goes on with other work and
fetches the result later. A pass that misses its deadline returns nothing and is counted.
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
    """Sensor in a thread of its own, with a deadline for each pass. Its owner is one thread.

    ``begin`` and ``take`` never wait; ``read`` is for callers that may wait for the deadline. A
    result after its deadline is dropped, because it would get the time of another pass. While a
    pass hangs, no other one is started; each one requested counts as late.
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
        """Number of passes without an answer within the deadline, including failed ones."""
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
        """Start a pass; return False while the last one still hangs."""
        if not self._answered.is_set():
            self._state = "refused"
            return False
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"otel-mlperf {self._name}", daemon=True
            )
            self._thread.start()
        self._state, self._began_s = "waiting", self._clock()
        # Cleared before the thread is woken: it could answer immediately, and that answer would be
        # lost.
        self._answered.clear()
        self._wanted.put(True)
        return True

    def take(self) -> list[Measurement] | None:
        """Return the result of the pass and its health, once.

        None: not yet, or returned already.
        """
        if self._state == "idle":
            return None
        # A result after the deadline may be there before the first call: it is late too.
        if self._state == "waiting" and self._answered.is_set():
            measured, took_s = self._answer
            return self._settle(measured if took_s <= self._deadline_s else None, took_s)
        age_s = self._clock() - self._began_s
        if self._state == "refused" or age_s > self._deadline_s:
            return self._settle(None, age_s)
        return None

    def read(self) -> list[Measurement]:
        """Read once; wait at most until the deadline."""
        self.begin()
        return self.finish()

    def finish(self) -> list[Measurement]:
        """Return the result of the started pass; wait at most until its deadline."""
        if self._state == "waiting":
            left_s = self._began_s + self._deadline_s - self._clock()
            self._answered.wait(max(0.0, left_s))
        measured = self.take()
        return self._settle(None, self._deadline_s) if measured is None else measured

    def close(self) -> None:
        """End thread and sensor; a thread that hangs is abandoned and ends when it can."""
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
            # The answer before the event: a thread that sees the event set reads a complete answer.
            self._answer = (measured, self._clock() - began_s)
            self._answered.set()
        # Here, not in close(): a driver's library belongs to the thread that loaded it.
        self._sensor.close()

    def _pass(self) -> list[Measurement] | None:
        try:
            return self._sensor.read()
        except Exception:  # noqa: BLE001 - whatever a vendor's library raises must not end the readings
            if not self._broken:
                _log.warning("reading the %s sensor failed", self._name, exc_info=True)
            self._broken = True
            return None
