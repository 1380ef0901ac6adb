"""The operators of a step sum to the time of the sections that they are under."""

from __future__ import annotations

import json

from run_folders import MS, START, RunFolderBuilder, digits

from otel_mlperf.analysis.profiles.section_operators import add_up
from otel_mlperf.analysis.steps.sampled_step import read_step
from otel_mlperf.report.step_page import render_step
from otel_mlperf.store.run_folders import read_run


class Profiled:
    """Step 2 of a run with a forward section, and what a profiler saw in it."""

    def __init__(self, tmp_path):
        self.run = digits(tmp_path)
        self.at = self.run.steps[2]["start_ns"] - START
        self.root = self.run.span(2, "train.step", self.at, 50 * MS)
        self.forward = self.span("forward", 10, 20, self.root)

    def span(self, name, at, spent, parent, **fields):
        """A recorded section, times in ms after the step began."""
        where = {"parent_id": parent, "root_id": self.root}
        return self.run.span(2, name, self.at + at * MS, spent * MS, **where | fields)

    def event(self, name, at, spent, parent, activity="cpu_op", **fields):
        """An event of the profiler."""
        own = {
            "category": "operator", "kind": "event", "track": 4242, "thread": "thread 4242",
            "attributes": json.dumps({"pytorch.profiler.activity": activity}),
        }  # fmt: skip
        return self.span(name, at, spent, parent, **own | fields)

    def kernel(self, name, at, spent, parent):
        """A device event."""
        where = {"category": "kernel", "track": -3, "thread": "stream 7", "thread_id": None}
        return self.event(name, at, spent, parent, "kernel", **where)

    def step(self, **options):
        return read_step(read_run(self.run.write()), 2, **options)


def of(found, name):
    """Name, count, ms and place of what is under a section."""
    (span,) = (span for span in found.ranks[0].spans if span.name == name)
    return [(one.name, one.count, one.self_ns // MS, one.place) for one in span.operators]


def profiled_step(tmp_path):
    """Nested operators, one inside an annotation, a section inside one, kernels, another thread."""
    step = Profiled(tmp_path)
    linear = step.event("linear", 11, 8, step.forward)
    step.event("addmm", 12, 5, linear)
    mark = step.event("mark", 19, 9, step.forward, "user_annotation")
    step.event("linear", 20, 3, mark)
    launch = step.event("launch", 24, 1, mark, "cuda_runtime")
    step.kernel("gemm", 26, 30, launch)
    step.kernel("gemm", 30, 10, launch)
    around = step.event("checkpoint", 26, 3, step.forward)
    step.span("inner", 27, 1, step.forward)
    step.event("sum", 27, 1, around, thread_id=77, track=77)
    step.event("item", 40, 2, "f" * 16)
    return step


def test_own_times_of_a_thread_add_up_to_what_operators_cover(tmp_path):
    """Kernels and other threads are told apart; annotations take nothing; sections are left out."""
    found = profiled_step(tmp_path).step()

    assert of(found, "forward") == [
        ("linear", 2, 6, "here"),
        ("addmm", 1, 5, "here"),
        ("checkpoint", 1, 2, "here"),
        ("launch", 1, 1, "here"),
        ("sum", 1, 1, "beside"),
        ("gemm", 2, 40, "device"),
    ]
    assert of(found, "train.step") == [("item", 1, 2, "here")]
    assert of(found, "inner") == []
    (forward,) = (span for span in found.ranks[0].spans if span.name == "forward")
    assert forward.self_ns // MS == 19


def test_nobody_has_to_have_them(tmp_path):
    """Without ``operators`` the spans are the same, and nothing is under them."""
    found = profiled_step(tmp_path).step(operators=False)

    assert [span.name for span in found.ranks[0].spans] == ["train.step", "forward", "inner"]
    assert not any(span.operators for span in found.ranks[0].spans)


def test_operators_stand_below_their_section(tmp_path):
    """With the rest that was in none; what ran elsewhere has its time in the other column."""
    assert "".join(render_step(profiled_step(tmp_path).step()).splitlines(keepends=True)[3:]) == (
        """\
  span                                    time      self
  train.step                           50.0 ms   30.0 ms  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
    item                                         2.00 ms
    outside operators                            28.0 ms
    forward                            20.0 ms   19.0 ms      ▇▇▇▇▇▇▇▇▇
      linear ×2                                  6.00 ms
      addmm                                      5.00 ms
      checkpoint                                 2.00 ms
      launch                                     1.00 ms
      outside operators                          5.00 ms
      sum                              1.00 ms            on other threads
      gemm ×2                          40.0 ms            on the device
      inner                            1.00 ms   1.00 ms             ▇
operators by name: their time is part of the self time of the section above
"""
    )


def test_many_names_are_cut_and_their_rest_is_added_up(tmp_path):
    """Eight at most where nothing ran elsewhere; leaves of one name are taken together."""
    step = Profiled(tmp_path)
    for name in range(11):
        step.event(f"op{name:02}", 10 + name, 1, step.forward)
    for layer in range(7):
        section = step.span("layer", 32 + 2 * layer, 2, step.root)
        step.event("gelu", 32 + 2 * layer, 1, section)
    lines = render_step(step.step(), width=80).splitlines()

    assert [line.split() for line in lines if "op0" in line or "more" in line] == [
        *([f"op{at:02}", "1.00", "ms"] for at in range(8)),
        ["3", "more", "3.00", "ms"],
        ["2", "more", "layer", "4.00", "ms", "4.00", "ms"],
    ]
    assert [line.split() for line in lines if "gelu" in line] == [["gelu", "×7", "7.00", "ms"]]
    assert lines[-2].split() == ["outside", "operators", "7.00", "ms"]
    assert max(map(len, lines)) <= 80


def test_time_inside_a_step_that_is_none_of_its_own_is_said(tmp_path):
    """The step is shorter than its span: with what it was, as far as it was kept."""
    run = RunFolderBuilder(tmp_path)
    run.step(2, 0, {"forward": 10 * MS}, kept="profiled", end_ns=START + 14 * MS)
    run.process()
    root = run.span(2, "train.step", 0, 14 * MS)
    run.span(2, "forward", 0, 10 * MS, parent_id=root, root_id=root)
    run.span(2, "profiler.export", 10 * MS, 4 * MS, trace_id="e" * 32)
    found = read_step(read_run(run.write()), 2)

    assert (found.ranks[0].outside_ns, found.ranks[0].outside) == (4 * MS, ["profiler.export"])
    assert (
        "10.0 ms (its span also contains 4.00 ms outside the step: profiler.export)"
    ) in render_step(found)


def test_those_of_several_sections_are_taken_together(tmp_path):
    """By name and place."""
    found = profiled_step(tmp_path).step()
    lists = [span.operators for span in found.ranks[0].spans]

    (linear,) = (one for one in add_up(lists + lists) if one.name == "linear")
    assert (linear.count, linear.self_ns) == (4, 12 * MS)
