"""Each program of the pages for users runs as shown, and prints what the page shows."""

from __future__ import annotations

import guides
import page_programs
import pytest
from servers.running import free_ports

SLURM = {
    "srun": """\
#!/bin/bash
# As Slurm starts the tasks of a step on one node.
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$TASKS SLURM_STEP_NUM_NODES=1
for ((task = 0; task < TASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit; done
""",
    "scontrol": "#!/bin/bash\necho localhost\n",
}
"""Commands of a cluster, as far as the page needs them."""
OF_FRAMEWORKS = {"frameworks", "huggingface", "keras", "lightning"}
"""Pages whose programs import a training framework."""
SHOWN = [
    pytest.param(
        page,
        number,
        marks=[pytest.mark.frameworks] * (page.stem in OF_FRAMEWORKS),
        id=f"{page.stem}-{number}",
    )
    for page in guides.GUIDES
    for number, _ in enumerate(page_programs.shown(page.read_text()))
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("page", "number"), SHOWN)
def test_a_command_of_a_page_says_what_is_shown_there(page, number, tmp_path):
    """Outcome, ranks, steps and rows are those of the page; times are of the moment."""
    text = page.read_text()
    one = page_programs.shown(text)[number]
    summary = page_programs.run(page_programs.files(text), one.command, tmp_path)

    assert page_programs.told(summary) == page_programs.told(one.summary)
    assert page_programs.told(summary)["0 lost"]
    assert page_programs.rows(summary) <= page_programs.explained(text)


@pytest.mark.slow
def test_cells_of_the_notebook_run_one_after_the_other(tmp_path):
    """As a kernel runs them: in one process, and the run ends in the last."""
    cells = [
        block
        for block in guides.blocks((guides.DOCS / "notebooks.md").read_text(), "python")
        if block.startswith("# cell\n")
    ]
    command = "python notebook.py && otel-mlperf summary --json > summary.json"
    summary = page_programs.run({"notebook.py": "\n".join(cells)}, command, tmp_path)

    assert len(cells) > 2
    assert page_programs.told(summary) == {
        "head": "finished · 1 rank, 1 node",
        "steps": 50,
        "rows": {"forward", "backward", "optimizer", "untracked"},
        "0 lost": True,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("number", "tasks"), [(0, "2"), (1, "1")], ids=["tasks", "torchrun"])
def test_the_ranks_of_a_batch_script_are_one_run(number, tasks, tmp_path):
    """Of its job and step, with nothing set beside what stands on the page."""
    script = guides.blocks((guides.DOCS / "slurm.md").read_text(), "sh")[number]
    smaller = script.replace("--nproc-per-node 4", "--nproc-per-node 2")
    program = page_programs.files((guides.DOCS / "own-script.md").read_text())
    (port,) = free_ports(1)
    # Another session of tests on this machine has another job.
    job = {"SLURM_JOB_ID": f"{port}", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost"}
    summary = page_programs.run(
        program | SLURM, smaller.replace("29500", str(port)), tmp_path,
        SLURM_SUBMIT_DIR=str(tmp_path), TASKS=tasks, OTEL_MLPERF_DRAIN_TIMEOUT_S="0", **job,
    )  # fmt: skip

    assert script.startswith("#!/bin/bash\n#SBATCH")
    assert page_programs.told(summary)["head"] == "finished · 2 ranks, 1 node", summary
    assert [run.name for run in (tmp_path / "otel-runs").iterdir()] == [f"train-slurm-{port}.0"]
