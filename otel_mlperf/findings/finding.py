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
    """One check of ``doctor``: a line of its output."""

    level: Level
    what: str
    found: str
    do: str = ""


def worst_first(checks: list[Check]) -> list[Check]:
    """Sort checks by severity: failures, warnings, then passed ones; stable within a level."""
    return sorted(checks, key=lambda check: LEVELS.index(check.level))


Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""Severities, most severe first."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a finding, as far as known."""

    section: str = ""
    """Section as a summary shows it; empty: no particular one."""
    steps: tuple[int, int] | None = None
    """First and last step number; None: all steps, or none."""
    rank: int | None = None
    """None: no single rank."""
    device: str = ""
    """Name such as ``gpu0``, or the mount point of a disk."""


WIDEST: Final = 0.4
"""Maximum width of a gain that is narrow enough to act on."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated saving as a share, 0.0 to 1.0, between ``low`` and ``high``."""

    low: float
    high: float
    of: Literal["step", "run", "memory"] = "step"
    """Reference of the share: the time of a step or of the run, or a process's memory at
    its end."""

    def narrowed(self) -> Gain:
        """Return the interval with its lower end raised until it is narrow enough to act on.

        For findings whose advice saves nearly all of the reported cost: then the gain is near the
        upper end.
        """
        return msgspec.structs.replace(self, low=max(self.low, self.high - WIDEST))

    def centered(self) -> Gain:
        """Return the interval cut at both ends until it is narrow enough to act on.

        For gains of which neither end is more likely than the other.
        """
        low = max(self.low, (self.low + self.high - WIDEST) / 2)
        return msgspec.structs.replace(self, low=low, high=min(self.high, low + WIDEST))


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A period of a live warning during the run."""

    after_ns: int
    """Time from the start of the run to the start of the condition."""
    held_ns: int
    """Duration until the condition was last seen to hold."""
    steps: tuple[int, int] | None
    """First and last step number in that period; None: no step."""
    rank: int | None
    """None: the warning is about the node."""
    value: float
    """The worst value."""
    threshold: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: a problem that is worth fixing."""

    id: str
    """Id of its row in the findings table: ``data_loading``."""
    severity: Severity
    summary: str
    """The problem in one sentence, without initial capital and final period."""
    action: str
    """Recommended action."""
    evidence: dict[str, float] = {}
    """Numbers behind the judgement; nanoseconds end in ``_ns``, shares are 0.0 to 1.0."""
    where: Where = Where()
    gain: Gain | None = None
    """None: it cannot be estimated from the recorded data."""
    command: str = ""
    """Command that shows more; empty: none."""
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
    """Records that existed when the findings were requested and were not evaluated, as text."""


def worst_findings_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, then by gain; stable otherwise.

    The cost of other programs on the machine comes after the program's own causes.
    """
    return sorted(findings, key=_rank)


_OF_OTHERS: Final = frozenset({"noisy_neighbour"})
_LEAST_OWN: Final = 0.1
"""Minimum gain of an own cause to come first: its fix also helps while other programs run."""


def _rank(finding: Finding) -> tuple[int, bool, float]:
    gain = finding.gain.high if finding.gain else 0.0
    is_behind = finding.id in _OF_OTHERS or gain < _LEAST_OWN
    return SEVERITIES.index(finding.severity), is_behind, -gain
