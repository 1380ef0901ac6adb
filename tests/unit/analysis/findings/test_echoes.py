"""A finding that another one explains is left out, and no other one."""

from __future__ import annotations

import pytest

from otel_mlperf.analysis.findings.finding_sources import without_explained
from otel_mlperf.findings.finding import Finding, Where


def finding(id, section=""):
    return Finding(id=id, severity="info", summary="", action="", where=Where(section=section))


@pytest.mark.parametrize("reason", ["noisy_neighbour", "oversubscription", "uneven_batches"])
def test_sections_are_uneven_for_a_reason(reason):
    """All of them, where threads wait for CPUs or batches are uneven."""
    found = [finding("uneven_section", "forward"), finding("uneven_section", "optimizer")]

    assert without_explained(found) == found
    assert without_explained([*found, finding(reason)]) == [finding(reason)]


@pytest.mark.parametrize(
    ("section", "reason"),
    [("garbage collection", "garbage_collection"), ("compile", "recompilation")],
)
def test_a_stall_has_a_finding_of_its_own(section, reason):
    """What is collected or compiled every so many steps is said once."""
    found = [finding("periodic_stall", section), finding(reason)]

    assert without_explained(found) == found[1:]


def test_a_stall_elsewhere_has_another_reason():
    """Only that in the wait for data is explained by a loader."""
    wait, saving = finding("periodic_stall", "data wait"), finding("periodic_stall", "checkpoint")

    assert without_explained([wait, saving, finding("slow_worker")]) == [
        saving,
        finding("slow_worker"),
    ]
