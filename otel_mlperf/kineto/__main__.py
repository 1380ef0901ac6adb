"""Entry point of the process that converts a profiler window for the agent."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_mlperf.kineto.job import Job

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # Must be set before numpy is imported, which reads it.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
_NICE = 10


def main(argv: list[str]) -> int:
    """Convert the window described by the ``Job`` in ``argv[0]`` (JSON); return the exit code."""
    import msgspec

    from otel_mlperf.errors import OtelMlperfError
    from otel_mlperf.kineto import job as jobs

    job = msgspec.json.decode(argv[0], type=jobs.Job)
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    signal.alarm(job.limit_s)  # Ends a process that runs too long, even if the agent has died.
    try:
        _convert(job)
    except OtelMlperfError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _convert(job: Job) -> None:
    from otel_mlperf.journal.profiler_windows import read_window
    from otel_mlperf.kineto.convert import convert, requests, return_freed_memory, store
    from otel_mlperf.kineto.counting.window_numbers import find_figures
    from otel_mlperf.kineto.job import Result, write_result
    from otel_mlperf.kineto.spans.budget import Budget

    return_freed_memory()
    description, run_folder = Path(job.window), Path(job.run_folder)
    window = read_window(description)
    conversion = convert(
        description.parent / window.trace,
        Budget(job.spans, by_trace=job.by_trace),
        window=window,
        run_folder=run_folder,
    )
    store(conversion, run_folder)
    sent = conversion.sampled(job.sampler) if job.sampler else conversion
    made = list(requests(sent, job.resource)) if job.is_sent else []
    result = Result(
        digest=conversion.trace.digest,
        events=conversion.events,
        rolled_up=sent.rolled_up,
        requests=[(items, len(body)) for items, body in made],
        end_ns=window.end[0],
        figures=find_figures(conversion.trace, conversion.numbers),
    )
    write_result(Path(job.result), result, (body for _, body in made))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
