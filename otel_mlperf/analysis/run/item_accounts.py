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
    """One signal on its way to one destination; created is the sum of all the others."""

    created: int = 0
    delivered: int = 0
    rolled_up: int = 0
    unselected: int = 0
    pending: int = 0
    lost: dict[str, int] = {}

    @property
    def adds_up(self) -> bool:
        """Whether every item is accounted for."""
        return self.created == self.ended + self.pending

    @property
    def ended(self) -> int:
        """Items whose fate is known."""
        return self.delivered + self.rolled_up + self.unselected + sum(self.lost.values())

    def add(self, other: RunAccount) -> None:
        """Takes in what another node counted."""
        for name in ("created", "delivered", "rolled_up", "unselected", "pending"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.lost.items():
            self.lost[reason] = self.lost.get(reason, 0) + count


Accounts = dict[str, dict[str, RunAccount]]
"""By signal and destination."""


def read_accounts(folder: Path) -> Accounts:
    """The accounts of a run folder, all nodes together; empty if no agent has written one yet.

    Raises:
        StoreError: a file is not readable; names it.
    """
    accounts: Accounts = {}
    for file in sorted((folder / "accounting").glob("*.json")):
        try:
            of_node = msgspec.json.decode(read_regular(file), type=Accounts)
        except (OSError, ValueError) as error:  # no JSON, no such shape, or no text
            raise StoreError(f"reading {file}: {error}; move it away to read the rest") from error
        for signal, destinations in of_node.items():
            for destination, account in destinations.items():
                # Every node has a file of its own, so that no two agents write to one.
                accounts.setdefault(signal, {}).setdefault(destination, RunAccount()).add(account)
    return accounts


def lost(accounts: Accounts) -> int:
    """Items that are lost to at least one destination."""
    return sum(
        # The same items go to every destination: added up, one that both lost would count twice.
        max(sum(account.lost.values()) for account in destinations.values())
        for destinations in accounts.values()
        if destinations
    )


def sections_lost(accounts: Accounts) -> int:
    """Sections that the recorder could not write: not even measured."""
    spans = accounts.get("spans", {})
    return max((account.lost.get(RING_FULL, 0) for account in spans.values()), default=0)


def pending(accounts: Accounts) -> int:
    """Items that have yet to reach a server."""
    return sum(
        account.pending
        for destinations in accounts.values()
        for destination, account in destinations.items()
        if destination != STORE
    )
