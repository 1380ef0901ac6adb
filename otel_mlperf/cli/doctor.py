"""``otel-mlperf doctor``: what is wrong, and what to do about it?"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.errors import Unreachable

if TYPE_CHECKING:
    from otel_mlperf.analysis.run.item_accounts import Accounts
    from otel_mlperf.findings.check import Check


def doctor(run: RunArgument = "latest", as_json: JsonOption = False) -> None:
    """Check machine, run, agent, accounting and server; the worst first."""
    from otel_mlperf.doctor.check_endpoint import check_backends, check_endpoints
    from otel_mlperf.doctor.check_machine import check_machine
    from otel_mlperf.findings.check import worst_first
    from otel_mlperf.report.finding_lines import render_checks
    from otel_mlperf.report.json_output import to_json
    from otel_mlperf.report.lines import shown_in
    from otel_mlperf.store.run_folders import runs_dir

    of_run, accounts, nodes = _of_run(run)
    checks = check_machine(runs_dir(), nodes) + of_run
    endpoints, reached = check_endpoints(os.environ)
    checks += endpoints + check_backends(os.environ, reached)
    checks = worst_first(checks)
    if as_json:
        print(to_json({"checks": checks, "accounting": accounts}))
    else:
        color, unicode = shown_in(sys.stdout)
        print(render_checks(checks, color=color, unicode=unicode), end="")
    if checks[0].level == "FAIL":
        raise typer.Exit(Unreachable.exit_code)


def _of_run(run: str) -> tuple[list[Check], Accounts, int]:
    """Checks, accounts and number of nodes of the run that is meant, if there is any yet."""
    from otel_mlperf.analysis.run.item_accounts import read_accounts
    from otel_mlperf.analysis.run.run_processes import read_processes
    from otel_mlperf.doctor.check_run import check_findings, check_run
    from otel_mlperf.findings.check import Check
    from otel_mlperf.store.run_folders import LATEST, find_run, list_runs, runs_dir
    from otel_mlperf.store.table_reader import Store

    if run == LATEST and not list_runs(runs_dir()):
        return [Check("ok", "run", f"none in {runs_dir()} yet")], {}, 1
    chosen = find_run(run)
    accounts = read_accounts(chosen.path)
    nodes = read_processes(Store(chosen.path)).nodes
    return check_run(chosen, accounts) + check_findings(chosen), accounts, nodes
