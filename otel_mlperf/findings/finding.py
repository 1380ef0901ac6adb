"""Data types of findings (problem, severity, evidence, gain, action) and of ``doctor``'s checks.

Commands with ``--json`` print these types as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


Level = Literal["FAIL", "warn", "ok"]
LEVELS: tuple[Level, ...] = ("FAIL", "warn", "ok")


class Check(msgspec.Struct, frozen=True):
    """Result of one check of ``doctor``, which is one line of the command's output."""

    level: Level
    what: str
    found: str
    do: str = ""


def worst_first(checks: list[Check]) -> list[Check]:
    """Sort checks by level: failures, warnings, passed checks; stable within a level."""
    return sorted(checks, key=lambda check: LEVELS.index(check.level))


Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""Severities, most severe first."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a finding; parts that are unknown have their default values."""

    section: str = ""
    """Name of the section as shown in a summary; empty: no particular section."""
    steps: tuple[int, int] | None = None
    """First and last step number; None: no particular steps."""
    rank: int | None = None
    """Rank with the problem; None: no single rank."""
    device: str = ""
    """Name of the device, such as ``gpu0``, or the mount point of a disk; empty: no device."""


WIDEST: Final = 0.4
"""Maximum width of a gain's interval that is narrow enough to act on."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated saving as an interval of shares, from ``low`` to ``high`` (0.0 to 1.0)."""

    low: float
    high: float
    of: Literal["step", "run", "memory"] = "step"
    """Base of the share: a step's time, the run's time, or a process's memory at the end."""

    def narrowed(self) -> Gain:
        """Return the interval with ``low`` raised so that the interval is at most ``WIDEST`` wide.

        Call this for a finding if its advice saves nearly all of the reported cost, so that the
        gain is close to ``high``.
        """
        return msgspec.structs.replace(self, low=max(self.low, self.high - WIDEST))

    def centered(self) -> Gain:
        """Return the interval cut equally at both ends to at most ``WIDEST``.

        Call this if the gain is equally likely at both ends.
        """
        low = max(self.low, (self.low + self.high - WIDEST) / 2)
        return msgspec.structs.replace(self, low=low, high=min(self.high, low + WIDEST))


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """Period during the run in which a live warning was active."""

    after_ns: int
    """Time from the start of the run until the warning's condition became true."""
    held_ns: int
    """Time from when the condition became true to when it was last seen true."""
    steps: tuple[int, int] | None
    """First and last step number in the period; None: no step ran."""
    rank: int | None
    """Rank of the warning; None: the warning is about the node."""
    value: float
    """Worst value that the condition compared in the period."""
    threshold: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: a problem of a run that is worth fixing."""

    id: str
    """Id of the finding's row in the findings table, such as ``data_loading``."""
    severity: Severity
    summary: str
    """The problem in one sentence, without initial capital and final period."""
    action: str
    """Recommended action."""
    evidence: dict[str, float] = {}
    """Measured values behind the finding by name; ``_ns`` is nanoseconds, shares are 0.0 to 1.0."""
    where: Where = Where()
    gain: Gain | None = None
    """Possible saving; None: it cannot be estimated from the recorded data."""
    command: str = ""
    """Command that shows details; empty: there is none."""
    warned: list[Warned] = []
    """Periods of live warnings about the problem, in order; empty: there was no warning."""


class FindingList(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="findings/1"):
    """All findings of one run."""

    id: str
    """Id of the run."""
    short_id: str
    findings: list[Finding]
    """Findings, worst first; empty: nothing was found."""
    missing: list[str] = []
    """Descriptions of records that the run had made before the request, but were not evaluated."""


def worst_findings_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, then by gain, largest first.

    Within a severity, findings about other programs on the machine come after findings with a large
    gain that the user can obtain in their own program.
    """
    return sorted(findings, key=_rank)


_OF_OTHERS: Final = frozenset({"noisy_neighbour"})
_MIN_OWN_GAIN: Final = 0.1
"""Minimum gain for a problem of the user's program to come before the cost of other programs.

Fixing such a problem helps even while other programs run."""


def _rank(finding: Finding) -> tuple[int, bool, float]:
    gain = finding.gain.high if finding.gain else 0.0
    is_behind = finding.id in _OF_OTHERS or gain < _MIN_OWN_GAIN
    return SEVERITIES.index(finding.severity), is_behind, -gain
