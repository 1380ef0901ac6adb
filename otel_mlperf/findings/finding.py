"""Data types of findings (problem, severity, evidence, gain, action) and of ``doctor``'s checks.

``--json`` prints both without conversion.
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
    """Location of a finding; unknown parts have their default values."""

    section: str = ""
    """Name of the section as in a summary; empty: no particular section."""
    steps: tuple[int, int] | None = None
    """First and last step number; None: all steps, or none."""
    rank: int | None = None
    """Rank with the problem; None: no single rank."""
    device: str = ""
    """Name of the device, such as ``gpu0``, or the mount point of a disk; empty: no device."""


WIDEST: Final = 0.4
"""Maximum width of a gain that is narrow enough to act on."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated saving as a share, 0.0 to 1.0, between ``low`` and ``high``."""

    low: float
    high: float
    of: Literal["step", "run", "memory"] = "step"
    """Reference of the share: the time of a step, the time of the run, or a process's memory at the
    end."""

    def narrowed(self) -> Gain:
        """Return the interval with its lower end raised to limit its width to ``WIDEST``.

        For findings whose advice saves nearly all of the reported cost, so that the gain is close
        to the upper end.
        """
        return msgspec.structs.replace(self, low=max(self.low, self.high - WIDEST))

    def centered(self) -> Gain:
        """Return the interval cut at both ends to limit its width to ``WIDEST``.

        For gains that are equally likely at both ends.
        """
        low = max(self.low, (self.low + self.high - WIDEST) / 2)
        return msgspec.structs.replace(self, low=low, high=min(self.high, low + WIDEST))


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """Period during the run in which a live warning was active."""

    after_ns: int
    """Time from the start of the run to the start of the condition."""
    held_ns: int
    """Duration from the start of the condition to the last time that it was true."""
    steps: tuple[int, int] | None
    """First and last step number in the period; None: no step."""
    rank: int | None
    """Rank of the warning; None: the warning is about the node."""
    value: float
    """Worst value of the condition in the period."""
    threshold: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: a problem that is worth fixing."""

    id: str
    """Id of the finding's row in the findings table, such as ``data_loading``."""
    severity: Severity
    summary: str
    """The problem in one sentence, without initial capital and final period."""
    action: str
    """Recommended action."""
    evidence: dict[str, float] = {}
    """Measured values behind the finding; ``_ns`` is nanoseconds, shares are 0.0 to 1.0."""
    where: Where = Where()
    gain: Gain | None = None
    """Possible saving; None: it cannot be estimated from the recorded data."""
    command: str = ""
    """Command that shows details; empty: none."""
    warned: list[Warned] = []
    """Periods of live warnings, in order; empty: no warning."""


class FindingList(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="findings/1"):
    """All findings of one run."""

    id: str
    """Id of the run."""
    short_id: str
    findings: list[Finding]
    """Findings, worst first; empty: nothing was found."""
    missing: list[str] = []
    """Descriptions of records that existed at the time of the request but were not evaluated."""


def worst_findings_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, then by gain; stable otherwise.

    Within a severity, the cost of other programs on the machine comes after causes in the program.
    """
    return sorted(findings, key=_rank)


_OF_OTHERS: Final = frozenset({"noisy_neighbour"})
_MIN_OWN_GAIN: Final = 0.1
"""Minimum gain of a cause in the program to come before the cost of other programs.

Fixing such a cause helps even while other programs run."""


def _rank(finding: Finding) -> tuple[int, bool, float]:
    gain = finding.gain.high if finding.gain else 0.0
    is_behind = finding.id in _OF_OTHERS or gain < _MIN_OWN_GAIN
    return SEVERITIES.index(finding.severity), is_behind, -gain
