"""Accounts of recorded items: created, delivered, pending and lost, by signal and destination."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.errors import StoreError
from otel_mlperf.whole_file import read_regular

if TYPE_CHECKING:
    from pathlib import Path

STORE = "store"
RING_FULL = "ring_full"


class RunAccount(msgspec.Struct, kw_only=True):
    """Account of one signal for one destination; ``created`` is the sum of all other fields."""

    created: int = 0
    delivered: int = 0
    rolled_up: int = 0
    unselected: int = 0
    pending: int = 0
    lost: dict[str, int] = {}

    @property
    def adds_up(self) -> bool:
        """Return whether ``created`` equals the sum of the ended and the pending items."""
        return self.created == self.ended + self.pending

    @property
    def ended(self) -> int:
        """Return the number of items that are no longer pending."""
        return self.delivered + self.rolled_up + self.unselected + sum(self.lost.values())

    def add(self, other: RunAccount) -> None:
        """Add the counts of another account, such as the account of another node."""
        for name in ("created", "delivered", "rolled_up", "unselected", "pending"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.lost.items():
            self.lost[reason] = self.lost.get(reason, 0) + count


Accounts = dict[str, dict[str, RunAccount]]
"""Accounts by signal (such as ``spans``), then by destination."""


def read_accounts(folder: Path) -> Accounts:
    """Return the accounts of a run folder, summed over nodes; empty if no agent has written any.

    Raises:
        StoreError: a file is not readable; the message names it.
    """
    accounts: Accounts = {}
    for file in sorted((folder / "accounting").glob("*.json")):
        try:
            of_node = msgspec.json.decode(read_regular(file), type=Accounts)
        except (OSError, ValueError) as error:  # invalid JSON, other fields, or not text
            raise StoreError(
                f"reading {file}: {error}; move the file away to read the other data"
            ) from error
        for signal, destinations in of_node.items():
            for destination, account in destinations.items():
                # Summed over the files, because the agent on each node writes its own file.
                accounts.setdefault(signal, {}).setdefault(destination, RunAccount()).add(account)
    return accounts


def lost(accounts: Accounts) -> int:
    """Return the number of lost items, summed over the signals.

    If several destinations lost items of a signal, only the largest loss is included.
    """
    return sum(
        # All destinations receive the same items: a sum would count an item twice if two lose it.
        max(sum(account.lost.values()) for account in destinations.values())
        for destinations in accounts.values()
        if destinations
    )


def sections_lost(accounts: Accounts) -> int:
    """Return the number of sections that were not recorded because the ring was full."""
    spans = accounts.get("spans", {})
    return max((account.lost.get(RING_FULL, 0) for account in spans.values()), default=0)


def pending(accounts: Accounts) -> int:
    """Return the number of items that have not reached a server yet, summed over servers."""
    return sum(
        account.pending
        for destinations in accounts.values()
        for destination, account in destinations.items()
        if destination != STORE
    )
