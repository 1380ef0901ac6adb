"""A rank that is slower than the others is reported, with the section in which it is."""

from __future__ import annotations

from run_folders import MS, RunFolderBuilder, S
from summaries import summary_of


def test_a_rank_that_is_slower_in_a_section_stands_out(tmp_path):
    """The one line that says which machine to look at; the table of all ranks is there too."""
    run = RunFolderBuilder(tmp_path, world_size=2)
    for rank, forward in ((0, 20), (1, 30)):
        for n in range(4):
            run.step(
                n, n * 50 * MS, {"forward": forward * MS, "backward": 10 * MS}, own=MS, rank=rank
            )
        run.process(S, rank=rank)

    steps = summary_of(run).steps

    assert [(one.rank, one.more_ns) for one in steps.stand_outs] == [(1, {"forward": 10.0 * MS})]
    assert [(one.rank, one.count, one.mean_ns, one.sections) for one in steps.ranks] == [
        (0, 4, 31.0 * MS, {"forward": 20 * MS, "backward": 10 * MS, "untracked": MS}),
        (1, 4, 41.0 * MS, {"forward": 30 * MS, "backward": 10 * MS, "untracked": MS}),
    ]
