"""File names of waiting requests, and log lines with the outcomes of requests.

A file name contains all data of a request except its body. A log line contains one outcome.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX: Final = ".batch"
_NAME: Final = re.compile(rf"(\d+)-([a-z]+)\.([a-z0-9_]+)-(\d+)-(\d+){re.escape(SUFFIX)}")
_LINE: Final = re.compile(
    r"(\d{1,20}) ([a-z]+/[a-z0-9_]+) (\d{1,10}) (\d{1,18}) "
    r"(-|[^ ,=]+=\d{1,18}(?:,[^ ,=]+=\d{1,18})*) \."
)


class WaitingRequest(NamedTuple):
    """Request that waits on disk, with its number of ``items`` and its ``size`` in bytes."""

    number: int
    account: str
    """Account name: "signal/destination"."""
    items: int
    check: int
    """CRC-32 of the body."""
    size: int

    @property
    def destination(self) -> str:
        """Return the name of the destination, which is part of the account name."""
        return self.account.split("/")[1]


class SettledRequest(NamedTuple):
    """Outcome of a request: the number of delivered items, and of lost items by reason."""

    number: int
    account: str
    check: int
    delivered: int
    lost: dict[str, int]


def file_name(request: WaitingRequest) -> str:
    """Return the name of the file that stores a request in the outbox."""
    account = request.account.replace("/", ".")
    return f"{request.number:010d}-{account}-{request.items}-{request.check}{SUFFIX}"


def request_in(path: Path) -> WaitingRequest | None:
    """Return the request stored in the file ``path``; None if the file name is not a request's."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    number, signal, destination, items, check = match.groups()
    size = path.stat().st_size
    return WaitingRequest(int(number), f"{signal}/{destination}", int(items), int(check), size)


def outcome_line(outcome: SettledRequest) -> str:
    """Return an outcome as a log line, after a newline in case the previous line was truncated."""
    lost = ",".join(f"{reason}={count}" for reason, count in outcome.lost.items())
    number, account, check, delivered, _ = outcome
    return f"\n{number} {account} {check} {delivered} {lost or '-'} ."


def parse_outcome(line: str) -> SettledRequest | None:
    """Parse one log line; return None if the line is truncated or damaged."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    number, account, check, delivered, lost = match.groups()
    pairs = (pair.split("=") for pair in lost.split(",")) if lost != "-" else ()
    counts = {reason: int(count) for reason, count in pairs}
    return SettledRequest(int(number), account, int(check), int(delivered), counts)
