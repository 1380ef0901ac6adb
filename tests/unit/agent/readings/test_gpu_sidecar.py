"""The sidecar of a task reads what the node's agent does not see."""

from __future__ import annotations

import subprocess
import sys

import pytest
import recipes
from runs import LIMIT_S, ending, environment
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.agent.readings.gpu_sidecar import sample
from otel_mlperf.agent.readings.gpu_visibility import (
    AGENT,
    View,
    read_sampled,
    read_views,
    write_view,
)

ACME = recipes.recipes(recipes.PAGE.read_text())["A GPU vendor"]
SIDECAR = f"""
import os, pathlib, sys
from {sample.__module__} import sample
sample(pathlib.Path(sys.argv[1]), os.environ)
"""


def test_gpu_of_another_package_is_read_for_a_task_and_until_it_ends(
    program, journals, tmp_path
) -> None:
    """With the vendor's own metric; what it read is taken away when the rank has ended."""
    recipes.install(ACME, tmp_path / "site", "acme")
    write_view(journals, AGENT, View("elsewhere", ()))
    journal = program.journal.path
    # In a process of its own, as it is: in this one it would take the journal's lock for nobody's.
    sidecar = subprocess.Popen(
        [sys.executable, "-c", SIDECAR, journal],
        env=environment(
            tmp_path, PYTHONPATH=str(tmp_path / "site"), OTEL_MLPERF_READINGS_INTERVAL="100"
        ),
    )
    with ending([sidecar]):
        (sampled,) = wait_until(lambda: read_sampled(journals), what="readings of the sidecar")
        (view,) = read_views(journals).values()
        program.stop(10)
        assert sidecar.wait(LIMIT_S) == 0

    said = {measurement.metric: measurement for measurement in sampled.measurements}
    assert view.ids == {"ACME-0001"}
    assert said[names.HW_POWER.name].value == 350
    assert said["acme.gpu.tiles"].value == 12
    assert said["acme.gpu.tiles"].device == "ACME-0001"
    assert said[names.SAMPLER_DURATION.name].pid == program.meta.pid
    assert read_sampled(journals) == []


@pytest.mark.parametrize(
    "environ", [{"OTEL_MLPERF_READINGS": "none"}, {"OTEL_MLPERF_DISABLED_READINGS": "host,gpu"}]
)
def test_nothing_is_sampled_where_gpus_are_not_wanted(tmp_path, environ) -> None:
    """The journal is not even looked at."""
    sample(tmp_path / "not there" / "0-1-1.journal", environ)

    assert list(tmp_path.iterdir()) == []
