"""Schedule of torch.profiler recordings (windows), with the profiler's options.

Environment variable, command line and YAML file use the same text form, e.g.
``wait=10,warmup=1,active=3,repeat=2``. Omitted fields have default values, and ``on`` selects all
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from otel_mlperf import names
from otel_mlperf.errors import ConfigError

Action = Literal["", "warmup", "active"]
_ON, _OFF = ("on", "true", "yes", "1"), ("", "off", "false", "no", "0")
_CHOICES = {"every": ("run", "epoch"), "unit": ("step", "epoch"), "phase": names.PHASES}
_ACTIVITIES = ("cpu", "cuda", "xpu", "mtia", "hpu", "privateuse1")
_MAX_DIGITS = 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Schedule of profiler windows of ``active`` steps each, in the steps of one phase."""

    skip_first: int = 0
    """Number of steps before the first ``wait``; they are skipped once."""
    wait: int = 10
    """Number of steps without the profiler before each warm-up."""
    warmup: int = 1
    """Number of steps before each window in which the profiler runs, but records nothing."""
    active: int = 3
    """Number of steps that a window records."""
    repeat: int = 1
    """Number of windows; 0: unlimited."""
    every: Literal["run", "epoch"] = "run"
    """With ``epoch``, the schedule restarts in each epoch."""
    unit: Literal["step", "epoch"] = "step"
    """Unit of all counts except ``warmup``; with ``epoch``, each recorded epoch is one window."""
    phase: str = "train"
    """Phase whose steps are counted and recorded."""
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    activities: tuple[str, ...] = ()
    """``cpu``, ``cuda``, …; empty: all activities that torch supports on this machine."""
    events: int = 200_000
    """Approximate maximum number of events; a window that exceeds it ends with the current step."""

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise _wrong(name, value, f"a whole number of at least {low}")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "true or false")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _wrong(name, getattr(self, name), f"one of {', '.join(choices)}", choices)
        unknown = [name for name in self.activities if name not in _ACTIVITIES]
        if unknown:
            raise _wrong("activities", unknown[0], f"of {', '.join(_ACTIVITIES)}")

    def action(self, position: int, epoch: int = 0) -> Action:
        """Return the profiler's action in a step; empty if the profiler is off.

        Args:
            position: number of the step from 0 upward, within the epoch if ``unit`` is ``epoch``.
            epoch: number of the epoch from 0 upward; ignored if ``unit`` is ``step``.
        """
        if self.unit == "epoch":
            if not self._records(epoch):
                return ""
            return "warmup" if position < self.warmup else "active"
        position -= self.skip_first
        turn, position = divmod(position, self.length)
        if turn < 0 or (self.repeat and turn >= self.repeat) or position < self.wait:
            return ""
        return "warmup" if position < self.wait + self.warmup else "active"

    def _records(self, epoch: int) -> bool:
        turn, place = divmod(epoch - self.skip_first, self.wait + self.active)
        return turn >= 0 and (not self.repeat or turn < self.repeat) and place >= self.wait

    def is_first(self, position: int) -> bool:
        """Return whether step ``position`` switches the profiler on, for warm-up or recording."""
        if self.unit == "epoch":
            return position == 0
        place = (position - self.skip_first) % self.length
        return place == self.wait and self.action(position) != ""

    def is_last(self, position: int) -> bool:
        """Return whether a window ends with step ``position``.

        The result is False if ``unit`` is ``epoch``, because the length of an epoch is unknown.
        """
        if self.unit == "epoch":
            return False
        place = (position - self.skip_first) % self.length
        return place == self.length - 1 and self.action(position) != ""

    @property
    def length(self) -> int:
        """Return the period of the schedule: the sum of ``wait``, ``warmup`` and ``active``."""
        return self.wait + self.warmup + self.active

    @property
    def most_windows(self) -> int:
        """Return the maximum number of windows in a run; 0 if the number is unlimited."""
        if self.unit == "epoch":
            return self.repeat * self.active
        return self.repeat if self.every == "run" else 0

    def __str__(self) -> str:
        return ",".join(
            f"{item.name}={_text(value)}"
            for item in fields(self)
            if (value := getattr(self, item.name)) != item.default
        ) or "on"  # fmt: skip


_NO_FLOPS = (
    "reading a profiler schedule: with_flops: torch writes no FLOPs into its trace; omit this "
    "option and call om.model_work(model), which counts those of each step"
)
_LOWEST = {"skip_first": 0, "wait": 0, "warmup": 0, "active": 1, "repeat": 0, "events": 1000}
_SWITCHES = ("record_shapes", "profile_memory", "with_stack")


def parse_schedule(given: Any) -> Schedule | None:
    """Return the schedule given as text, mapping, bool or Schedule; None if the profiler stays off.

    Raises:
        ConfigError: ``given`` is not a valid schedule.
    """
    if isinstance(given, Schedule) or given is None:
        return given
    if isinstance(given, bool):
        return Schedule() if given else None
    if isinstance(given, Mapping):
        return Schedule(**{str(name): _given(str(name), value) for name, value in given.items()})
    if not isinstance(given, str):
        raise ConfigError(
            f"reading a profiler schedule: found a {type(given).__name__}; write "
            "'wait=10,warmup=1,active=3'"
        )
    text = given.strip()
    if text.lower() in _ON + _OFF:
        return Schedule() if text.lower() in _ON else None
    pairs = [_pair(part) for part in text.split(",")]
    words = [name for name, _ in pairs]
    for name in words:
        if words.count(name) > 1:
            raise ConfigError(
                f"reading a profiler schedule: found {name!r} {words.count(name)} times; "
                "write it once"
            )
    return Schedule(**dict(pairs))


def schedule_text(given: Any) -> str:
    """Return the text form of a schedule given as for ``parse_schedule``; empty if that is None.

    Raises:
        ConfigError: ``given`` is not a valid schedule.
    """
    schedule = parse_schedule(given)
    return "" if schedule is None else str(schedule)


def _pair(part: str) -> tuple[str, Any]:
    name, sign, value = (word.strip() for word in part.partition("="))
    if not sign:
        raise ConfigError(
            f"reading a profiler schedule: found {part!r}, expected name=value, as in "
            "'wait=10,active=3'"
        )
    return name, _parsed(name, _given(name, value))


def _given(name: str, value: Any) -> Any:
    """Return a field's value, for ``activities`` as a tuple.

    Raises:
        ConfigError: there is no field ``name``, or the value of ``activities`` has a wrong type.
    """
    if name == "with_flops":
        raise ConfigError(_NO_FLOPS)
    if name not in _KNOWN:
        hint = _suggestion(name, _KNOWN) or f"known: {', '.join(_KNOWN)}"
        raise ConfigError(f"reading a profiler schedule: unknown word {name!r}; {hint}")
    if name == "activities":
        if not isinstance(value, str | list | tuple):
            raise _wrong("activities", value, f"some of {', '.join(_ACTIVITIES)}")
        words = value.split("+") if isinstance(value, str) else value
        return tuple(str(word).strip().lower() for word in words if str(word).strip())
    return value


def _parsed(name: str, value: Any) -> Any:
    if name in _LOWEST:
        return int(value) if value.isdecimal() and len(value) <= _MAX_DIGITS else value
    if name in _SWITCHES and value.lower() in _ON + _OFF[1:]:
        return value.lower() in _ON
    return value


def _suggestion(word: Any, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(str(word), known, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else ""


_KNOWN = tuple(item.name for item in fields(Schedule))


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrong(name: str, value: Any, expected: str, known: Sequence[str] = ()) -> ConfigError:
    suggestion = _suggestion(value, known)
    return ConfigError(
        f"reading a profiler schedule: {name} is {value!r}, expected {expected}"
        + (f"; {suggestion}" if suggestion else ", as in 'wait=10,warmup=1,active=3'")
    )
