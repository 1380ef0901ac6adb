"""A finding: what is wrong with a run, how serious it is, the evidence, the gain and the action.

Plain data that ``--json`` prints as it is; so is a check of ``otel-mlperf doctor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


Level = Literal["FAIL", "warn", "ok"]
LEVELS: tuple[Level, ...] = ("FAIL", "warn", "ok")


class Check(msgspec.Struct, frozen=True):
    """One line of ``doctor``."""

    level: Level
    what: str
    found: str
    do: str = ""


def worst_first(checks: list[Check]) -> list[Check]:
    """Failures before warnings before what is well; else in the given order."""
    return sorted(checks, key=lambda check: LEVELS.index(check.level))


Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""The gravest first."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was found, as far as that is known."""

    section: str = ""
    """As a summary shows it; empty: in no particular one."""
    steps: tuple[int, int] | None = None
    """The first and the last number; None: in all of them, or in none."""
    rank: int | None = None
    """None: of no single rank."""
    device: str = ""
    """Such as ``gpu0``, or the mount point of a disk."""


WIDEST: Final = 0.4
"""Difference between the ends of a gain that can still be acted on."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Which share would be won: 0.0 to 1.0, between ``low`` and ``high``."""

    low: float
    high: float
    of: Literal["step", "run", "memory"] = "step"
    """The time of a step or of the run, or the memory that a process has at its end."""

    def narrowed(self) -> Gain:
        """Return the interval with its lower end raised until it is not too wide to act on.

        For findings whose advice, where it is followed, saves nearly all of what was found: then
        the gain is near the upper end.
        """
        return msgspec.structs.replace(self, low=max(self.low, self.high - WIDEST))

    def centered(self) -> Gain:
        """Return the interval cut at both ends until it is not too wide to act on.

        For gains of which neither end is likelier than the other.
        """
        low = max(self.low, (self.low + self.high - WIDEST) / 2)
        return msgspec.structs.replace(self, low=low, high=min(self.high, low + WIDEST))


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which it was warned of while the run went on."""

    after_ns: int
    """From the start of the run to when it began to hold."""
    held_ns: int
    """Until it was seen to hold last."""
    steps: tuple[int, int] | None
    """Numbers of the first and the last step meanwhile; None: there was none."""
    rank: int | None
    """None: of the node."""
    value: float
    """The worst."""
    threshold: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is worth changing."""

    id: str
    """Of its row in the table of findings: ``data_loading``."""
    severity: Severity
    summary: str
    """What is the case, in one sentence that begins with no capital and ends with no stop."""
    action: str
    """What to do about it."""
    evidence: dict[str, float] = {}
    """The numbers by which it was judged; nanoseconds end in ``_ns``, shares are 0.0 to 1.0."""
    where: Where = Where()
    gain: Gain | None = None
    """None: nobody can tell from what was recorded."""
    command: str = ""
    """That shows more; empty: there is none."""
    warned: list[Warned] = []
    """When it was warned of, in order; empty: it was not."""


class FindingList(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="findings/1"):
    """All that is worth changing in one run."""

    id: str
    """Of the run."""
    short_id: str
    findings: list[Finding]
    """Worst first; empty: nothing was found."""
    missing: list[str] = []
    """What had been recorded when they were asked for and was not looked at, in words."""


def worst_findings_first(findings: Iterable[Finding]) -> list[Finding]:
    """The gravest first, of these what would win most; else in the given order.

    What other programs on the machine cost comes behind the program's own causes.
    """
    return sorted(findings, key=_rank)


_OF_OTHERS: Final = frozenset({"noisy_neighbour"})
_LEAST_OWN: Final = 0.1
"""Gain from which on an own cause comes first: it is won beside other programs, too."""


def _rank(finding: Finding) -> tuple[int, bool, float]:
    gain = finding.gain.high if finding.gain else 0.0
    is_behind = finding.id in _OF_OTHERS or gain < _LEAST_OWN
    return SEVERITIES.index(finding.severity), is_behind, -gain
