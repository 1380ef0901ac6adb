"""A process derives its run and rank from its launcher."""

from __future__ import annotations

import pytest

from otel_mlperf.recorder.lifecycle.run_identity import detect_identity

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
            "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "job7"}  # fmt: skip
SLURM = {"SLURM_JOB_ID": "99", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
         "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "4"}  # fmt: skip
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
       "OMPI_COMM_WORLD_SIZE": "2"}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 0, 1, None)),
        (TORCHRUN, (3, 1, 4, 2)),
        (SLURM, (5, 1, 8, None)),
        (SLURM | TORCHRUN, (3, 1, 4, 2)),
        (MPI, (1, 1, 2, None)),
        ({"SLURM_JOB_ID": "99", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 0, 1, None)),
        ({"RANK": "x", "WORLD_SIZE": ""}, (0, 0, 1, None)),
        ({"RANK": "²", "WORLD_SIZE": "-1"}, (0, 0, 1, None)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 2, 4, None)),
    ],
)
def test_place(environ, expected):
    """Rank, local rank, world size and restart of each launcher; nonsense is ignored."""
    who = detect_identity("", {}, environ)

    assert (who.rank, who.local_rank, who.world_size, who.restart) == expected


@pytest.mark.fault("F100")
@pytest.mark.parametrize("digits", [10, 23, 5000])
@pytest.mark.parametrize(
    "variable", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"]
)
def test_number_without_measure(said, variable, digits):
    """A number that no launcher gives is ignored with a word, as is one that is none."""
    who = detect_identity("", {}, {variable: "9" * digits})

    assert (who.rank, who.local_rank, who.world_size, who.restart) == (0, 0, 1, None)
    assert said() == [f"{variable}={'9' * min(digits, 40)} is not a valid number and is ignored"]


def test_minus_one_is_no_fault(said):
    """Scripts set LOCAL_RANK to it where nobody launched them."""
    assert detect_identity("", {}, {"LOCAL_RANK": "-1"}).local_rank == 0
    assert said() == []


@pytest.mark.parametrize(
    ("wanted", "environ", "expected"),
    [
        ("mine", TORCHRUN, "mine"),
        ("", TORCHRUN, "job7"),
        ("", SLURM | TORCHRUN, "slurm-99.0"),
        ("", SLURM, "slurm-99.0"),
    ],
)
def test_run_id(wanted, environ, expected):
    """An id that is asked for wins over Slurm's, that over torchrun's."""
    assert detect_identity(wanted, {}, environ).run_id == expected


def test_random_id():
    """A process alone gets 128 random bits."""
    found = {detect_identity("", {}, {}).run_id for _ in range(10)}

    assert len(found) == 10
    assert all(len(run_id) == 32 for run_id in found)


@pytest.mark.parametrize("elastic", [{}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_processes_of_one_launcher(elastic):
    """Ranks without an id share one, by their launcher; on their own they do not."""
    ranks = [{"RANK": str(i), "WORLD_SIZE": "2"} | elastic for i in range(2)]

    assert len({detect_identity("", {}, environ).run_id for environ in ranks}) == 1


def test_later_starts():
    """The k-th run of a process under one id gets ``.k``; random ids are all different."""
    earlier = {}
    found = [detect_identity(wanted, earlier, {}).run_id for wanted in ("job", "", "job", "new")]

    assert [found[0], found[2], found[3]] == ["job", "job.2", "new"]
    assert "." not in found[1]


def test_nodes_without_a_common_id():
    """Several nodes and no id in common: said, with the fix."""
    nodes = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}

    assert "OTEL_MLPERF_RUN_ID" in detect_identity("", {}, nodes).warning
    assert detect_identity("job", {}, nodes).warning == ""
