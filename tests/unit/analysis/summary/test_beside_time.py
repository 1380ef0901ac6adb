"""Work concurrent with the steps, in DataLoader workers too, has rows in the summary."""

from __future__ import annotations

from run_folders import MS, RunFolderBuilder, S
from summaries import rendered, rows_of, summary_of


def loading(folder):
    """Two steps; workers that decode and, in that, resize, and add up the reading of files."""
    run = RunFolderBuilder(folder)
    for n in range(2):
        run.step(n, n * 60 * MS, {"data.load": 10 * MS, "forward": 50 * MS})
        run.section(run.steps[-1], "prefetch", 5 * MS, beside=True)
    run.outside("decode", 300 * MS, count=64, self_ns=140 * MS, beside=True)
    run.outside("decode/resize", 60 * MS, count=64, beside=True)
    run.outside("decode//read", 100 * MS, aggregate=True, beside=True, parent="decode", count=999)
    run.process(S)
    return run


def test_sections_of_workers_have_rows_beside_the_step(tmp_path):
    """Their own time over all steps; those inside others, and those only added up, as well."""
    summary = summary_of(loading(tmp_path))

    assert rows_of(summary) == [("data wait", 10.0), ("forward", 50.0), ("untracked", 0.0)]
    assert rows_of(summary, beside=True) == [
        ("prefetch", 5.0),
        ("decode", 70.0),
        ("read", 50.0),
        ("resize", 30.0),
    ]
    decode = next(row for row in summary.steps.rows if row.name == "decode")
    assert (decode.p95_ns, decode.share) == (None, 70 / 60)


def test_they_are_in_the_text(tmp_path, monkeypatch):
    """Without a quantile, which nobody can know of them."""
    lines = rendered(loading(tmp_path / "runs"), monkeypatch).splitlines()

    at = lines.index("  concurrent with the step")
    assert [line.split() for line in lines[at + 1 : at + 5]] == [
        ["prefetch", "5.0", "5.0"],
        ["decode", "70.0", "–"],
        ["read", "50.0", "–"],
        ["resize", "30.0", "–"],
    ]
