"""From when on is it worth a word that threads wait for CPUs, and whose are they?"""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.finding_row import FindingRow

CONTENTION_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="oversubscription",
        name="Oversubscription",
        severity="warning",
        threshold=0.1,
        summary=(
            "{runnable:.1f} threads of the run want {cpus:g} CPUs, so that its main thread waits "
            "for one in {value:.0%} of the time"
        ),
        action=(
            "Likely its own threads are too many: set OMP_NUM_THREADS={threads} (or "
            "torch.set_num_threads({threads})) in the training process."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="noisy_neighbour",
        name="NoisyNeighbour",
        severity="warning",
        threshold=0.1,
        summary=(
            "others use {others:.1f} of the {host:g} CPUs of the host, and the main thread waits "
            "for a CPU in {value:.0%} of the time"
        ),
        action=(
            "Look at who else runs there (top, ps -eo pcpu,args --sort=-pcpu), stop or move it, "
            "or give this run CPUs of its own (taskset, an exclusive node, a CPU quota of theirs)."
        ),
        of_ended=True,
    ),
)
