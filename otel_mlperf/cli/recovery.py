"""Implementation of ``doctor --recover``: recovery of journals, and delivery of buffered data."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from otel_mlperf.cli.output import echo
from otel_mlperf.errors import JournalError, Unreachable
from otel_mlperf.settings.config import ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.store.run_folders import RunFolder


def recover(run: str | None, endpoint: str | None) -> None:
    """Read journals that killed processes left, and deliver the buffered data of ``run``.

    If ``run`` is None, the journals of all runs of this user on this node are read, but nothing is
    delivered. Nothing is sent to a destination that only the run folder names: a message shows how
    to send the data there.
    """
    from otel_mlperf.agent.lifecycle.run_recovery import (
        deliver_rest,
        folders_to_read,
        recover_journals,
    )
    from otel_mlperf.quantities import plural
    from otel_mlperf.settings.run_settings import with_endpoint
    from otel_mlperf.store.run_folders import find_run

    environ = with_endpoint(os.environ, endpoint)
    meant = None if run is None else find_run(run)
    journals = recover_journals(environ, folders_to_read(meant))
    echo(f"{plural(journals.read, 'journal')} read to the end")
    if journals.in_use:
        echo(f"{plural(journals.in_use, 'journal')} skipped: the program still runs; to store "
                   "its data now, run 'otel-mlperf serve agent'")  # fmt: skip
    if journals.failed:
        raise JournalError(
            "reading leftover journals: " + "; ".join(journals.failed) + "; the journals are kept: "
            "try the version of otel_mlperf that wrote them"
        )
    if meant is None:
        return
    rest = deliver_rest(meant, environ)
    if rest.windows:
        echo(f"{plural(rest.windows, 'profiler window')} converted")
    echo(
        f"{plural(rest.delivered, 'request')} delivered, "
        f"{rest.waiting + rest.withheld:,} not delivered"
    )
    if rest.withheld:
        echo(_hint(meant, environ, plural(rest.withheld, "request")))
    if rest.waiting:
        requests = plural(rest.waiting, "request")
        raise Unreachable(
            f"delivering buffered data of run {run}: {requests} {_remedy(meant, environ)}"
        )


def _hint(run: RunFolder, environ: Mapping[str, str], requests: str) -> str:
    from otel_mlperf.settings.run_settings import read_stored

    settings, recorded = read_stored(run.path, environ)
    unsent = {name: value for name, value in recorded.items() if name not in settings}
    if not unsent:
        return f"{requests} not sent: no destination is set; pass --endpoint URL"
    named = " and ".join(unsent.values())
    command = f"otel-mlperf doctor {run.short_id} --recover"
    if [*unsent] == [ENDPOINT]:
        command += f" --endpoint {shlex.quote(unsent[ENDPOINT])}"
    else:
        variables = (f"{name}={shlex.quote(value)}" for name, value in unsent.items())
        command = f"{' '.join(variables)} {command}"
    return (
        f"{requests} not sent: the destination is set only in the run folder ({named}), which may "
        f"have been written by another user; to send to this destination: {command}"
    )


def _remedy(run: RunFolder, environ: Mapping[str, str]) -> str:
    from otel_mlperf.agent.model.agent_options import read_stored_options

    options = read_stored_options(run.path, environ)
    if server := options.traces or options.metrics:
        return (
            f"not accepted by {server.endpoint}; start this server, or send the spans to another "
            f"server: otel-mlperf export {run.short_id} --endpoint URL"
        )
    return (
        f"not accepted by {','.join(sorted(options.trackers))}; try again when the server answers"
    )
