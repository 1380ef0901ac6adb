"""Values that the program reported keep their place below the table."""

from __future__ import annotations

from run_folders import MS, START, RunFolderBuilder, S
from summaries import rendered


def test_what_the_program_said_itself_has_a_line_each(runs, monkeypatch):
    """Its settings, the last values it logged, its counters."""
    run = RunFolderBuilder(runs, params={"lr": 0.001, "batch": 32, "note": "long " * 40})
    run.step(0, 0, {"forward": 10 * MS})
    run.process(S)
    row = {"rank": 0, "restart": 0}
    for at, loss in enumerate((0.5, 0.0123, 0.9)):
        time = START + (9 if loss == 0.0123 else at)
        run.row("values", **row, phase="train", name="loss", number=at, time_ns=time, value=loss)
    for name, value in (("lr", 1e-3), ("least", -1e300), ("debt", -1e6)):
        where = {"phase": "train", "number": 2, "time_ns": START + 5}
        run.row("values", **row, **where, name=name, value=value)
    for name, value in (("ml.user.tokens", 120.0), ("ml.user.tokens", 360.0), ("other", 5.0)):
        at = START + int(value)
        run.row("readings", **row, name=name, labels="{}", time_ns=at, value=value)

    lines = rendered(run, monkeypatch).splitlines()

    first = lines.index("params    lr 0.001 · batch 32 ·")
    assert lines[first + 1].startswith("          note long long")
    last = next(line for line in lines if line.startswith("last"))
    assert last == "last      loss 0.0123 · debt -1,000,000 · least -1e+300 · lr 0.001"
    assert "counted   tokens 360" in lines


def test_many_counters_take_further_lines(runs, monkeypatch):
    """Nothing is cut off; gauges are no counts, and have their labels with them."""
    run = RunFolderBuilder(runs)
    run.step(0, 0, {"forward": 10 * MS})
    run.process(S)
    at = {"rank": 0, "restart": 0, "time_ns": START}
    for number in range(12):
        run.row("readings", **at, name=f"ml.user.number{number:02}", labels="{}", value=1000.0)
    run.row("instruments", rank=0, restart=0, name="ml.user.depth", unit="", kind="gauge")
    for queue, depth in (("a", 3.0), ("b", 0.5)):
        labels = f'{{"queue": "{queue}"}}'
        run.row("readings", **at, name="ml.user.depth", labels=labels, value=depth)

    lines = rendered(run, monkeypatch).splitlines()

    first = next(i for i, line in enumerate(lines) if line.startswith("counted"))
    assert lines[first : first + 4] == [
        "counted   number00 1,000 · number01 1,000 · number02 1,000 · number03 1,000 ·",
        "          number04 1,000 · number05 1,000 · number06 1,000 · number07 1,000 ·",
        "          number08 1,000 · number09 1,000 · number10 1,000 · number11 1,000",
        "gauges    depth (a) 3 · depth (b) 0.5",
    ]


def test_checkpoints_say_how_large_and_how_fast_they_were(runs, monkeypatch):
    """A line for what was written, and one for what was read."""
    run = RunFolderBuilder(runs)
    run.step(0, 0, {"forward": 10 * MS})
    run.process(S)
    for direction, size, spent_s in (("write", 4.2e9, 6.0), ("read", 1000.0, 0.5)):
        labels = f'{{"ml.checkpoint.io.direction": "{direction}"}}'
        at = {"rank": 0, "restart": 0, "time_ns": START, "labels": labels}
        run.row("readings", **at, name="ml.checkpoint.io", value=size)
        run.row("readings", **at, name="ml.checkpoint.io.time", value=spent_s)

    lines = rendered(run, monkeypatch).splitlines()

    at = lines.index("saved     checkpoints: 4.20 GB at 700 MB/s")
    assert lines[at - 1].startswith("goodput")
    assert lines[at + 1] == "loaded    checkpoints: 1.00 kB at 2.00 kB/s"


def test_what_would_fill_the_terminal_is_left_to_json(runs, monkeypatch):
    """Eight lines under one label, the last of which says where the rest is."""
    run = RunFolderBuilder(runs, params={f"setting{i:03}": i for i in range(99)})
    run.step(0, 0, {"forward": 10 * MS})
    run.process(S)

    lines = rendered(run, monkeypatch).splitlines()

    first = next(i for i, line in enumerate(lines) if line.startswith("params"))
    assert lines[first + 7] == "          … summary --json contains all"
    assert lines[first + 8].startswith("telemetry")


def test_a_slowest_step_that_was_not_kept_names_one_that_was(runs, monkeypatch):
    """Nearly as long, and it can be opened."""
    run = RunFolderBuilder(runs)
    for n in range(20):
        spent = {12: 99, 15: 100}.get(n, 50)
        run.step(n, n * S, {"forward": spent * MS}, kept="longest" if n == 12 else None)
    run.process(30 * S)

    page = rendered(run, monkeypatch)

    assert "slowest   step 15: 100 ms, not sampled (sampled: step 12) · forward 100 ms" in page


def test_marks_have_a_line(runs, monkeypatch):
    """What the program marked, and at which step, of the first rank that marked any."""
    run = RunFolderBuilder(runs)
    run.step(0, 0, {"forward": 10 * MS})
    run.process(S)
    for rank in (1, 0):
        run.mark("warm", 3 * MS, 0, rank=rank)
        run.mark("lr halved", 8 * MS, 1200, rank=rank)

    assert "marks     warm at step 0, lr halved at step 1,200" in rendered(run, monkeypatch)
