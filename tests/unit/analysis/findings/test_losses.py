"""Lost devices and lost records are findings of a run."""

from __future__ import annotations

import json

from run_folders import S, digits

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding import Where
from otel_mlperf.store.run_folders import read_run


def judged(run, id_):
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id == id_]


def test_a_device_that_stopped_answering(tmp_path):
    """By its span: on whose rank, and when for the first time."""
    run = digits(tmp_path)
    told = {names.HW_ID: "GPU-1", names.HW_NAME: "gpu0", names.EXCEPTION_MESSAGE: "gone"}
    about = {"category": names.DEVICE, "attributes": json.dumps(told)}
    run.span(0, names.SPAN_DEVICE_LOST, S, 0, **about)
    (found,) = judged(run, "gpu_lost")

    assert (found.severity, found.summary) == ("critical", "gpu0 stopped responding")
    assert found.evidence == {"count": 1, "after_ns": S}
    assert found.where == Where(rank=0, device="gpu0")


def test_records_that_nobody_can_get_any_more(tmp_path):
    """By the accounts, with the command that says why."""
    run = digits(tmp_path)
    run.accounting(spans={"store": {"created": 9, "delivered": 5, "lost": {"outbox_full": 4}}})
    (found,) = judged(run, "telemetry_lost")

    assert found.summary == "4 spans or metric points were lost"
    assert found.evidence == {"lost": 4}
    assert found.command == "otel-mlperf doctor 3f2a"


def test_nothing_lost_is_no_finding(tmp_path):
    """Nor is what nobody has counted."""
    assert judged(digits(tmp_path), "telemetry_lost") == []
