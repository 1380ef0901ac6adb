"""What does one NVIDIA GPU say now?

An error that means that the whole device has gone is handed on to the caller; a smaller one leaves
out what was asked for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from otel_mlperf import names
from otel_mlperf.sensors.gpus.nvidia.nvml_fields import CALLS, VALUES, ask_memory
from otel_mlperf.sensors.gpus.nvidia.nvml_refusals import Refusals
from otel_mlperf.sensors.levels import includes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from otel_mlperf.sensors.gpus.gpu import Call, Device, Handle, Said
    from otel_mlperf.sensors.gpus.nvidia.nvml_fields import Value
    from otel_mlperf.sensors.levels import Level
    from otel_mlperf.sensors.measurement import Measurement

T = TypeVar("T")

SELDOM_S: Final = 60.0

_FIELD_OF_TYPE: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_UNSIGNED_INT: Final = 1


class Found(NamedTuple):
    """A device of NVML's, with the handles to ask it by."""

    device: Device
    handle: Handle
    instances: tuple[Handle, ...] = ()


class Gpu:
    """One GPU that answers. Not asked again once ``read`` has raised."""

    def __init__(self, nvml: ModuleType, found: Found, level: Level, said: set[str]) -> None:
        """``said`` holds what the log has been told, which outlives a GPU that comes back."""
        self.device = found.device
        self.handle = found.handle
        self._nvml = nvml
        self._instances = found.instances
        self._refusals = Refusals(nvml, found.device.uuid, said)
        self._calls = [call for call in CALLS if includes(level, call.level)]
        self._values = [value for value in VALUES if includes(level, value.level)]
        self._kept: dict[str, tuple[float, list[Said]]] = {}

    def read(self, now_s: float) -> list[Measurement]:
        """Everything that it offers.

        Raises:
            NVMLError: The device has gone.
        """
        said: list[Said] = []
        for call in self._calls:
            said += self._ask_call(call, now_s)
        said += self._ask_values(now_s)
        found = [self.device.measurement(*one) for one in said]
        for place, handle in enumerate(self._instances):
            said = self.ask(f"memory of instance {place}", ask_memory, handle, now_s)
            found += [self.device.instance_measurement(place, *one) for one in said]
        return found

    def say_refusals(self) -> None:
        """Tells the log what it has refused since it was last asked."""
        self._refusals.say()

    def ask(
        self,
        name: str,
        question: Callable[[ModuleType, Handle], list[T]],
        handle: Handle,
        now_s: float,
    ) -> list[T]:
        """The answer to ``question``; nothing where the device refuses it.

        Raises:
            NVMLError: The device has gone.
        """
        if not self._refusals.is_on(name, now_s):
            return []
        try:
            answer = question(self._nvml, handle)
        except self._nvml.NVMLError as error:
            self._refusals.refused(name, error.value, now_s)
            return []
        self._refusals.answered(name)
        return answer

    def _ask_call(self, call: Call, now_s: float) -> list[Said]:
        if not call.seldom:
            return self.ask(call.name, call.ask, self.handle, now_s)
        asked_s, kept = self._kept.get(call.name, (-math.inf, []))
        if now_s - asked_s >= SELDOM_S:
            kept = self.ask(call.name, call.ask, self.handle, now_s)
            self._kept[call.name] = now_s, kept
        return kept

    def _ask_values(self, now_s: float) -> list[Said]:
        wanted = [value for value in self._values if self._refusals.is_on(value.name, now_s)]
        ids = [(value.id, value.scope) for value in wanted]

        def question(nvml: ModuleType, gpu: Handle) -> list[Any]:
            return list(nvml.nvmlDeviceGetFieldValues(gpu, ids))

        answers = self.ask("numbers by id", question, self.handle, now_s) if ids else []
        said: list[Said] = []
        for value, answer in zip(wanted, answers, strict=False):
            if answer.nvmlReturn:
                self._refusals.refused(value.name, answer.nvmlReturn, now_s)
            elif _wraps(value, answer):
                self._refusals.give_up(value.name)
            else:
                number = getattr(answer.value, _FIELD_OF_TYPE[answer.valueType])
                said.append((value.metric, value.labels, number / value.per_unit))
                self._refusals.answered(value.name)
        return said


def _wraps(value: Value, answer: Any) -> bool:
    """Whether it is a count of bytes in 32 bits, which starts anew several times in a pass."""
    return value.metric is names.GPU_IO and answer.valueType == _UNSIGNED_INT
