"""Data types of the goodput ledger: kinds of wall time, by rank, as ``--json`` prints them."""

from __future__ import annotations

import msgspec

IDLE = "idle"
IMPORTS = "imports"
SET_UP = "set-up"
TRAIN = "train"
DATA_WAIT = "data wait"
VALIDATION = "validation"
PREDICT = "predict"
CHECKPOINT = "checkpoint"
COMPILE = "compile"
LOST_WORK = "lost work"
RESTART = "restart"
OTHER = "other"
KINDS = (
    TRAIN, PREDICT, DATA_WAIT, VALIDATION, CHECKPOINT, COMPILE, IMPORTS, SET_UP, RESTART,
    LOST_WORK, IDLE, OTHER,
)  # fmt: skip
PRODUCTIVE = (TRAIN, PREDICT)
"""Productive kinds: their share of the wall time is the goodput."""


class RankLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Ledger of one rank."""

    rank: int
    spent_ns: dict[str, int]
    """Time by kind; sums to the run's wall time."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Ledger of the run's wall time over all ranks."""

    wall_ns: int
    """Time from the start of the first process to the end of the last one."""
    spent_ns: dict[str, int]
    """Time by kind over all ranks: sums to the wall time x the number of ranks."""
    goodput: float
    """Productive time ÷ wall time, mean over the ranks."""
    lost_steps: int
    """Steps over all ranks that failed, or were repeated after a restart."""
    ranks: list[RankLedger]
