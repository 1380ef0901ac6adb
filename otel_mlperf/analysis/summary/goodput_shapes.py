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
"""What a run is made for: their share is its goodput."""


class RankLedger(msgspec.Struct, frozen=True, kw_only=True):
    """One rank."""

    rank: int
    spent_ns: dict[str, int]
    """By kind; adds up to the run's wall time."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks spent the run's wall time on."""

    wall_ns: int
    """From the begin of the first process to the last end of one."""
    spent_ns: dict[str, int]
    """By kind, over all ranks: adds up to the wall time x the number of ranks."""
    goodput: float
    """Productive time ÷ wall time, mean over the ranks."""
    lost_steps: int
    """Steps, over all ranks, that were made again after a restart, or failed."""
    ranks: list[RankLedger]
