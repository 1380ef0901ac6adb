"""The closing text is the one that users know, in 80 columns."""

from __future__ import annotations

import re
import time

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits
from summaries import rendered

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.parts import write_as_of
from otel_mlperf.store.run_folders import read_run


def test_a_finished_run(runs, monkeypatch):
    """The whole text, letter by letter."""
    assert rendered(digits(runs), monkeypatch) == (
        """\
digits · 3f2a · finished · 1 rank, 1 node · 3.05 s
40 steps · mean 51.0 ms  p50 49.0  p95 50.9 · 1,250 samples/s
  one step     mean ms   p95  share
  data wait       18.0  17.9   35 %  ▇▇▇▇▇▇▇
  forward         11.0  11.0   22 %  ▇▇▇▇
  backward        16.0  16.0   31 %  ▇▇▇▇▇▇
  optimizer        4.0   4.0    8 %  ▇▇
  untracked        2.0   2.0    4 %  ▇
warm-up   step 0: 336 ms (not in the figures above)
outside   720 ms outside steps (24 %): load_data 250 ms, validate 220 ms (2×),
          set-up 150 ms, checkpoint 80.0 ms (2×), untracked 20.0 ms
goodput   53 % of 3.05 s: train 53 %, data wait 24 %, set-up 13 %,
          validation 7 %, checkpoint 3 %, other <1 %
slowest   step 23: 128 ms · data wait 95.0 ms
result    accuracy 0.9833
telemetry 0 records lost · overhead 0.3 % of run time
          stored in otel-runs/digits-3f2a
next      otel-mlperf show 3f2a --step 23
"""
    )


def test_several_ranks_on_gpus_with_work_beside_the_step(runs, monkeypatch):
    """Host time is said to be; the slowest step names its rank; beside has no share."""
    run = RunFolderBuilder(runs, "llama", "77aa0000", world_size=4)
    for rank in range(2):
        for n in range(30):
            spent = {"data.load": 2 * MS, "forward": 100 * MS, "all_reduce": 30 * MS}
            if (rank, n) == (1, 17):
                spent["all_reduce"] = 4_000 * MS
            run.step(n, n * 140 * MS, spent, own=MS, rank=rank, tokens=4096, samples=8)
            run.section(run.steps[-1], "prefetch", 90 * MS, beside=True)
        run.process(10 * S, rank=rank, host=f"node{rank}", has_gpu=True, overhead_ns=100_000)
    run.accounting(
        spans={"otlp": {"created": 20_000, "delivered": 10_000, "pending": 9_000,
                        "lost": {"ring_full": 1_000}}}
    )  # fmt: skip

    assert rendered(run, monkeypatch) == (
        """\
llama · 77aa · finished · 2 of 4 ranks, 2 nodes · 10.0 s
30 steps · mean 199.2 ms  p50 133.0  p95 133.0 · 41,100 tokens/s
  80.3 samples/s
  one step (host time)  mean ms    p95  share
  data wait                 2.0    2.0    1 %  ▇
  forward                 100.0  100.0   50 %  ▇▇▇▇▇▇▇▇▇▇
  all_reduce               96.2   30.0   48 %  ▇▇▇▇▇▇▇▇▇▇
  untracked                 1.0    1.0   <1 %  ▇
  concurrent with the step
  prefetch                 90.0   90.0
ranks     rank 1: all_reduce +132 ms
outside   4.03 s outside steps (40 %): untracked 4.03 s
goodput   59 % of 10.0 s: train 59 %, other 40 %, data wait <1 %
slowest   step 17 on rank 1: 4.10 s, not sampled · all_reduce 4.00 s
figures   incomplete: 1,000 spans lost, the journal was full
          raise OTEL_MLPERF_JOURNAL_ROWS, or use aggregate=True for short spans
telemetry 1,000 records lost · overhead <0.1 % of run time
          stored in otel-runs/llama-77aa
          9,000 not sent yet: otel-mlperf doctor 77aa --recover
next      otel-mlperf doctor 77aa
"""
    )


def test_a_failed_run_is_headed_by_its_failure(runs, monkeypatch):
    """Where and why, before everything else; a long message has a few lines."""
    run = RunFolderBuilder(runs)
    run.step(36, 0, {"forward": 10 * MS})
    run.process(
        12 * S,
        "failed",
        error_type="RuntimeError",
        error_message="shapes cannot be multiplied\n(64x1024 and 512x10): expected 512 columns",
        error_step=37,
        error_section="forward",
    )

    assert rendered(run, monkeypatch).splitlines()[:4] == [
        "failed at step 37 in forward: RuntimeError: shapes cannot be multiplied (64x1024",
        "and 512x10): expected 512 columns",
        "digits · 3f2a · failed · 1 rank, 1 node · 12.0 s",
        "1 step · mean 10.0 ms  p50 10.0  p95 10.0",
    ]


@pytest.mark.parametrize(
    ("outcome", "fields", "headline"),
    [
        (
            "interrupted",
            {"error_type": "KeyboardInterrupt", "error_step": 37, "error_section": "data.load"},
            "interrupted at step 37 in data wait: KeyboardInterrupt",
        ),
        (
            "killed",
            {"error_step": 37, "error_section": "backward"},
            "killed at step 37 in backward",
        ),
        ("failed", {"error_type": "ImportError", "error_message": "x"}, "failed: ImportError: x"),
    ],
)
def test_other_ends_are_headed_likewise(runs, monkeypatch, outcome, fields, headline):
    """Ctrl-C, a kill, and a failure before the first step."""
    run = RunFolderBuilder(runs)
    run.process(S, outcome, **fields)

    lines = rendered(run, monkeypatch).splitlines()

    assert lines[:2] == [headline, f"digits · 3f2a · {outcome} · 1 rank, 1 node · 1.00 s"]


def test_a_run_without_steps_is_a_tree(runs, monkeypatch):
    """Self and total by section."""
    run = RunFolderBuilder(runs, "preprocess")
    run.outside("tokenize", 6 * S, self_ns=S, count=12)
    run.outside("tokenize/read", 4 * S, count=1200)
    run.outside("write", 3 * S, count=1, start_ns=START + 6 * S)
    run.section(
        None, "normalize", S, aggregate=True, parent="tokenize", count=2_000_000,
        path="tokenize//normalize", min_ns=200, max_ns=3 * MS, start_ns=START,
    )  # fmt: skip
    run.process(10 * S)
    run.accounting(spans={"store": {"created": 5, "delivered": 5}})

    assert rendered(run, monkeypatch) == (
        """\
preprocess · 3f2a · finished · 1 rank, 1 node · 10.0 s
  section           calls     total      self  share
  tokenize             12    6.00 s    1.00 s   10 %  ▇
    read            1,200    4.00 s    4.00 s   40 %  ▇▇▇▇▇▇
    normalize   2,000,000    1.00 s    1.00 s   10 %  ▇
  write                 1    3.00 s    3.00 s   30 %  ▇▇▇▇
  untracked                            1.00 s   10 %  ▇
added up  normalize ×2,000,000: 1.00 s in tokenize, mean 500 ns, 200 ns–3.00 ms
telemetry 0 records lost · overhead 0.0 % of run time
          stored in otel-runs/preprocess-3f2a
next      otel-mlperf doctor 3f2a
"""
    )


def test_a_run_that_has_just_begun(runs, monkeypatch):
    """Nothing to show is said, not drawn."""
    run = RunFolderBuilder(runs)
    run.process(outcome="running")

    assert rendered(run, monkeypatch, missing=["rank 0: 7 of 9 rows are still being stored"]) == (
        """\
digits · 3f2a · running · 1 rank, 1 node · 0 s
no step and no section has ended
telemetry not counted yet · stored in otel-runs/digits-3f2a
          rank 0: 7 of 9 rows are still being stored
next      otel-mlperf summary 3f2a
"""
    )


def test_a_running_run_says_up_to_when_it_is_told_of(runs, monkeypatch):
    """A moment, in local time, and a step; one that has ended is told of to its end."""
    running = RunFolderBuilder(runs, "other")
    running.process(outcome="running")
    running.step(7, 0, {"forward": MS})
    folder = read_run(running.write())
    write_as_of(folder.path, "node1", START + 2 * S)
    at = time.strftime("%d %b %H:%M:%S", time.localtime(START / S + 2))

    assert f"\nas of     {at}, step 7\ntelemetry " in render_summary(summarize(folder))
    assert "as of" not in rendered(digits(runs), monkeypatch)


@pytest.mark.parametrize("collections", [0, 2])
def test_a_run_that_recorded_nothing_says_what_to_do(runs, monkeypatch, collections):
    """A script that nobody knows has to be told where its steps are, if it collects garbage too."""
    run = RunFolderBuilder(runs)
    if collections:
        run.outside("gc.collect", MS, count=collections, category=names.GARBAGE_COLLECTION)
    run.process(S)

    assert rendered(run, monkeypatch).splitlines()[1] == (
        "nothing was recorded; use om.steps and om.span in the script, see README"
    )


def test_steps_of_microseconds_have_a_unit_that_shows_them(runs, monkeypatch):
    """No column of zeros."""
    run = RunFolderBuilder(runs)
    for n in range(3):
        run.step(n, n * MS, {"forward": 120_000}, own=3_400)
    run.process(S)

    assert rendered(run, monkeypatch).splitlines()[1:5] == [
        "3 steps · mean 123.4 µs  p50 123.4  p95 123.4",
        "  one step     mean µs    p95  share",
        "  forward        120.0  120.0   97 %  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇",
        "  untracked        3.4    3.4    3 %  ▇",
    ]


def test_many_sections_are_cut_to_those_that_matter(runs, monkeypatch):
    """The largest in their order, the others as one row: still adding up."""
    run = RunFolderBuilder(runs)
    spent = {f"layer{i:02}": (100 if i % 2 else 1) * MS for i in range(24)}
    for n in range(3):
        run.step(n, n * 2 * S, spent, own=5 * MS)
    run.process(10 * S)

    lines = rendered(run, monkeypatch).splitlines()[3:17]

    assert [line.split()[0] for line in lines[:12]] == [f"layer{i:02}" for i in range(1, 24, 2)]
    assert lines[12].split()[:3] == ["12", "others", "12.0"]
    assert lines[13].split()[:2] == ["untracked", "5.0"]


def test_background_work_has_a_line_of_its_own(runs, monkeypatch):
    """Below the time outside, of which it is no part; in the table it is what it is to a step."""
    run = RunFolderBuilder(runs)
    run.step(0, 0, {"forward": 10 * MS})
    run.outside("bg", S, count=242, beside=True)
    run.process(S)

    assert rendered(run, monkeypatch).splitlines()[5:10] == [
        "  concurrent with the step",
        "  bg             1,000.0     –",
        "outside   990 ms outside steps (99 %): untracked 990 ms",
        "goodput   1 % of 1.00 s: other 99 %, train 1 %",
        "parallel  bg 1.00 s (242×)",
    ]


def test_a_restart_is_told_in_the_first_line(runs, monkeypatch):
    """The figures are of all starts."""
    run = RunFolderBuilder(runs)
    run.step(0, 0, {"forward": 10 * MS}, restart=1)
    run.process(S // 2, "failed", restart=0)
    run.process(S, restart=1)

    first = rendered(run, monkeypatch).splitlines()[0]

    assert first == "digits · 3f2a · finished · restarted 1× · 1 rank, 1 node · 1.00 s"


def test_what_a_running_run_has_yet_to_send_needs_no_remedy(runs, monkeypatch):
    """Its agent is at it."""
    run = RunFolderBuilder(runs)
    run.process(outcome="running")
    run.accounting(spans={"otlp": {"created": 61, "pending": 61}})

    assert "telemetry 0 records lost · 61 not sent yet · " in rendered(run, monkeypatch)


def test_long_names_and_values_stay_in_their_columns(runs, monkeypatch):
    """Run, section, result and note are cut where they would break the picture."""
    name = "x" * 90
    run = RunFolderBuilder(runs, name)
    run.step(0, 0, {"模型" * 20: 10 * MS, "data.load": MS})
    run.outside("preparing_the_whole_data_set_of_a_long_name" * 2, 5 * S)
    run.process(10 * S, result='{"note": "' + "long " * 40 + '"}')

    rendered(run, monkeypatch, missing=["n" * 200])


@pytest.mark.fault("S19")
def test_what_a_program_writes_cannot_move_the_cursor(runs, monkeypatch):
    """Escape sequences and line feeds in names and messages are shown as question marks."""
    run = RunFolderBuilder(runs)
    run.step(0, 0, {"evil\x1b[2J": 10 * MS})
    run.process(S, "failed", error_type="E", error_message="a\x1b]0;title\x07b\nc")

    text = rendered(run, monkeypatch)

    assert "\x1b" not in text
    assert "failed: E: a?]0;title?b c" in text


def test_colour_changes_no_letter(runs, monkeypatch):
    """Without its codes a coloured text is the plain one."""
    path = digits(runs).write()
    monkeypatch.chdir(runs.parent)
    summary = summarize(read_run(path))
    colored = render_summary(summary, color=True)

    assert "\x1b[32mfinished\x1b[0m" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == render_summary(summary)


def test_a_terminal_of_ascii_gets_ascii(runs, monkeypatch):
    """The same picture with what there is."""
    text = rendered(digits(runs), monkeypatch, unicode=False)

    assert text.isascii()
    assert "  data wait       18.0  17.9   35 %  #######\n" in text
    assert text.startswith("digits - 3f2a - finished - 1 rank, 1 node - 3.05 s\n")


@pytest.mark.parametrize("width", [60, 70, 100, 200])
@pytest.mark.parametrize("with_steps", [True, False])
def test_every_terminal_gets_the_same_figures(runs, width, with_steps):
    """Narrow ones on more lines, wide ones on longer ones; no number is left out."""
    run = digits(runs) if with_steps else RunFolderBuilder(runs, params={"lr": 0.1, "batch": 7})
    if not with_steps:
        for depth in range(1, 7):
            path = "/".join(f"a_section_of_a_long_name_{letter}" for letter in "abcdef"[:depth])
            run.outside(path, (60 - depth) * S, self_ns=S)
        run.outside("background_work", 9 * S, count=3, beside=True)
        run.process(99 * S, "failed", error_type="ValueError", error_message="word " * 30)
    summary = summarize(read_run(run.write()))

    usual, shown = (figures_of(render_summary(summary, width=columns)) for columns in (80, width))

    assert shown == usual


def figures_of(text):
    """All numbers, but those of the time outside: what has no room there is added up."""
    return re.findall(r"[\d.,]*\d", re.sub(r"(?ms)^outside.*?^(?=\S)", "", text))


def test_collections_on_other_threads_now_and_then_have_no_row_beside(runs, monkeypatch):
    """One of 5 ms in a hundred steps of 10 ms."""
    run = RunFolderBuilder(runs)
    for n in range(100):
        run.step(n, n * 20 * MS, {"forward": 10 * MS})
    at = {"beside": True, "category": "garbage_collection"}
    run.section(run.steps[7], "gc.collect", 5 * MS, **at)
    run.process(3 * S)

    assert "concurrent with the step" not in rendered(run, monkeypatch)


def test_parts_of_a_wait_for_data_are_below_it(runs, monkeypatch):
    """With their times and without shares: these are in that of the wait."""
    run = RunFolderBuilder(runs)
    for n in range(30):
        run.step(n, n * 30 * MS, {"data.load": 20 * MS, "forward": 5 * MS}, own=MS)
        inside = {"beside": True, "parent": "data.load"}
        run.section(run.steps[-1], "decode", 15 * MS, path="data.load/decode", **inside)
        run.section(run.steps[-1], "prefetch", 9 * MS, beside=True)
    run.process(S)

    assert rendered(run, monkeypatch).split("\n")[2:9] == [
        "  one step     mean ms   p95  share",
        "  data wait       20.0  20.0   77 %  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇",
        "    decode        15.0  15.0",
        "  forward          5.0   5.0   19 %  ▇▇▇▇",
        "  untracked        1.0   1.0    4 %  ▇",
        "  concurrent with the step",
        "  prefetch         9.0   9.0",
    ]
