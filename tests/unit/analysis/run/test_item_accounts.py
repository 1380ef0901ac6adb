"""Accounts of several nodes add up, and a loss is counted once."""

from __future__ import annotations

import json

import pytest

from otel_mlperf.analysis.run.item_accounts import RunAccount, lost, pending, read_accounts
from otel_mlperf.errors import StoreError


def write(folder, host, accounts):
    """What the agent of a host has counted."""
    (folder / "accounting").mkdir(exist_ok=True)
    (folder / "accounting" / f"{host}.json").write_text(json.dumps(accounts))


def test_accounts_of_all_nodes_are_added(tmp_path):
    """By signal, destination and reason."""
    write(tmp_path, "a", {"spans": {"otlp": {"created": 5, "delivered": 4, "lost": {"full": 1}}}})
    write(
        tmp_path,
        "b",
        {
            "spans": {"otlp": {"created": 9, "pending": 7, "lost": {"full": 1, "rejected": 1}}},
            "metrics": {"otlp": {"created": 3, "delivered": 3}},
        },
    )

    assert read_accounts(tmp_path) == {
        "spans": {
            "otlp": RunAccount(created=14, delivered=4, pending=7, lost={"full": 2, "rejected": 1})
        },
        "metrics": {"otlp": RunAccount(created=3, delivered=3)},
    }


def test_without_an_agent_there_are_no_accounts(tmp_path):
    """Which is not the same as nothing lost."""
    assert read_accounts(tmp_path) == {}


@pytest.mark.parametrize(
    ("account", "holds"),
    [
        (
            RunAccount(
                created=10, delivered=4, rolled_up=1, unselected=2, pending=2, lost={"x": 1}
            ),
            True,
        ),
        (RunAccount(created=10, delivered=4), False),
        (RunAccount(created=3, delivered=4), False),
        (RunAccount(), True),
    ],
)
def test_the_identity_holds_or_not(account, holds):
    """The terms: created = delivered + rolled_up + unselected + pending + lost."""
    assert account.adds_up is holds


def test_a_span_that_no_destination_got_is_lost_once(tmp_path):
    """The full ring loses it for store and server alike; pending is what a server still gets."""
    accounts = {
        "spans": {
            "store": RunAccount(lost={"ring_full": 2}, pending=1),
            "otlp": RunAccount(lost={"ring_full": 2, "rejected": 1}, pending=5),
        },
        "metrics": {"otlp": RunAccount(lost={"rejected": 4}, pending=1)},
    }

    assert (lost(accounts), pending(accounts)) == (7, 6)


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"\xff": {}}'])
def test_an_account_that_cannot_be_read_is_named(tmp_path, damage):
    """As every file of the run."""
    (tmp_path / "accounting").mkdir()
    (tmp_path / "accounting" / "a.json").write_bytes(damage)

    with pytest.raises(StoreError, match=r"reading .*a\.json: .*; move the file away to read"):
        read_accounts(tmp_path)
