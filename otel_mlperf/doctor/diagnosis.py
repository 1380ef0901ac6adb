"""Complete diagnosis: all checks of machine, run and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from otel_mlperf.analysis.run.item_accounts import Accounts, read_accounts
from otel_mlperf.analysis.run.run_processes import read_processes
from otel_mlperf.doctor.check_endpoint import check_backends, check_endpoints
from otel_mlperf.doctor.check_machine import check_machine
from otel_mlperf.doctor.check_run import check_findings, check_run
from otel_mlperf.findings.finding import Check, worst_first
from otel_mlperf.store.run_folders import LATEST, find_run, list_runs, runs_dir
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Mapping


class Diagnosis(msgspec.Struct, frozen=True, tag_field="schema", tag="diagnosis/1"):
    """Results of all checks of machine, run, agent and servers, and the accounts of all items."""

    checks: list[Check]
    """All checks: failures first, then warnings, then passed checks."""
    accounting: Accounts
    """Item accounts of the run; empty if there is no run."""

    @property
    def has_failed(self) -> bool:
        """Return whether any check failed."""
        return self.checks[0].level == "FAIL"


class _RunChecks(NamedTuple):
    checks: list[Check]
    accounts: Accounts
    nodes: int


def diagnose(run: str, environ: Mapping[str, str]) -> Diagnosis:
    """Check the machine, the run named ``run``, and the servers configured in ``environ``.

    Raises:
        NoSuchRun: no such run exists (no error for ``latest`` if there is no run at all yet).
        StoreError: a file of the run cannot be read.
    """
    of_run = _check_named(run)
    checks = check_machine(runs_dir(), of_run.nodes) + of_run.checks
    endpoints, reached = check_endpoints(environ, of_run.accounts)
    # Backends are only checked for signals that an endpoint accepts, since they need sent items.
    checks += endpoints + check_backends(environ, reached)
    return Diagnosis(worst_first(checks), of_run.accounts)


def _check_named(run: str) -> _RunChecks:
    if run == LATEST and not list_runs(runs_dir()):
        return _RunChecks([Check("ok", "run", f"no run in {runs_dir()} yet")], {}, 1)
    chosen = find_run(run)
    store, accounts = Store(chosen.path), read_accounts(chosen.path)
    checks = check_run(chosen, store, accounts) + check_findings(chosen, store)
    return _RunChecks(checks, accounts, read_processes(store).nodes)
