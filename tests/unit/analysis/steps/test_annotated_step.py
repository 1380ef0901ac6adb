"""``show`` displays a run that is made of traces from elsewhere."""

from __future__ import annotations

import pytest
from kineto_traces import event, kernel, launch, operator, write_trace

from otel_mlperf.analysis.steps.sampled_step import read_step
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.importing.trace_import import Importer
from otel_mlperf.report.step_page import render_step
from otel_mlperf.store.run_folders import find_run


def annotation(name, start_us, duration_us):
    """What ``record_function`` of the program leaves."""
    return event(name, start_us, duration_us, category="user_annotation")


def steps(*, later_us=0):
    """Step 3 of 100 µs with a forward pass, and step 4 of 50 µs with an operator."""
    return [
        annotation("ProfilerStep#3", 0, 100),
        annotation("## forward ##", 10, 60 + later_us),
        operator("aten::linear", 20, 40, external=1),
        annotation("inside an operator", 22, 5),
        operator("aten::addmm", 30, 20, external=2),
        launch(35, 5, 101),
        kernel("gemm", 70, 30, 101),
        operator("aten::item", 80, 10, external=3),
        annotation("ProfilerStep#4", 200, 50),
        operator("aten::zero_", 210, 10, external=4),
    ]


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A run of these traces, one a rank."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))

    def put(*ranks):
        importer = Importer("", None)
        importer.put_into("elsewhere")
        for rank, entries in enumerate(ranks):
            info = {"rank": rank, "world_size": len(ranks)}
            importer.take(
                write_trace(tmp_path / f"{rank}.json", entries, distributedInfo=info), None
            )
        return find_run("elsewhere")

    return put


def test_annotations_are_the_sections_of_a_step(imported) -> None:
    """With the operators and kernels that ran in them, and their own time."""
    found = read_step(imported(steps()), 3)
    (rank,) = found.ranks

    assert (found.number, found.phase, rank.duration_ns) == (3, "", 100_000)
    assert [(span.name, span.depth, span.duration_ns, span.self_ns) for span in rank.spans] == [
        ("ProfilerStep#3", 0, 100_000, 40_000),
        ("## forward ##", 1, 60_000, 60_000),
    ]
    step, forward = ({of.name: of for of in span.operators} for span in rank.spans)
    assert {name: of.self_ns for name, of in step.items()} == {"aten::item": 10_000}
    assert forward["gemm"].self_ns == 30_000
    assert sum(of.self_ns for of in forward.values() if of.place == "here") == 40_000


def test_ranks_stand_beside_each_other(imported) -> None:
    """Of one step, in one trace; ``--rank`` leaves the others out."""
    run = imported(steps(), steps(later_us=5))

    both, one = read_step(run, 3), read_step(run, 3, rank=1)

    assert [rank.spans[1].duration_ns for rank in both.ranks] == [60_000, 65_000]
    assert [rank.rank for rank in one.ranks] == [1]
    assert one.trace_id == both.trace_id


def test_without_a_number_it_is_the_longest(imported) -> None:
    """And it is said which there are."""
    found = read_step(imported(steps()))

    assert (found.number, found.chosen, found.kept) == (3, True, [3, 4])


def test_a_step_that_no_trace_shows_is_none(imported) -> None:
    """Those that they show are told; a phase has none of them."""
    run = imported(steps())

    with pytest.raises(NoSuchStep, match="profiled steps: step 3-4"):
        read_step(run, 7)
    with pytest.raises(NoSuchStep, match="validate step 3"):
        read_step(run, 3, "validate")


def test_the_page_names_the_step_and_its_operators(imported) -> None:
    """As for a step that was recorded, without a phase that nobody has told."""
    page = render_step(read_step(imported(steps()), 3), width=80)

    assert page.startswith("step 3 · from the profiler only · run ")
    for word in ("ProfilerStep#3", "## forward ##", "aten::addmm", "gemm", "on the device"):
        assert word in page


def test_traces_without_steps_have_none_to_show(imported) -> None:
    """As of any run in which no step has ended."""
    with pytest.raises(NoSuchStep, match="no step has ended in this run"):
        read_step(imported([operator("aten::add", 0, 5)]))
