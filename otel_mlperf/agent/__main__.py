"""What does the agent's process do when it is started?"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # read when numpy is loaded
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"


def main(argv: list[str]) -> int:
    """Serves the folder of the journal ``argv[0]``; returns an exit code.

    Where another agent does it, reads what that one cannot see.
    """
    from otel_mlperf.agent.lifecycle.agent_process import first_meta, leave_the_job, serve
    from otel_mlperf.ids import safe_name

    journal = Path(argv[0]).absolute()
    folder = journal.parent
    meta = first_meta(folder)
    if meta is None:
        return 0
    leave_the_job(Path(meta.run_folder), safe_name(meta.host))
    code = serve(folder, os.environ)
    if journal.exists():
        from otel_mlperf.agent.readings.gpu_sidecar import sample

        sample(journal, os.environ)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
