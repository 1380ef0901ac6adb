"""The control groups of a process are found, however trees are mounted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import write_files

from otel_mlperf.sensors.cgroup_files import (
    Chain,
    Membership,
    find_chain,
    parse_membership,
    parse_mounts,
)

SYS = Path("/s")
TOP = SYS / "fs" / "cgroup"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V1_CPU = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
HYBRID = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"


def chain(controller, cgroup, mountinfo):
    groups, mounts = parse_membership(cgroup.encode()), parse_mounts(mountinfo.encode())
    return find_chain(controller, groups, mounts, SYS)


def test_version_2_has_one_chain_for_all():
    """From the process's group up to what is mounted."""
    found = chain("memory", "0::/kube/pod/job\n", V2)

    assert found == Chain(2, (TOP / "kube/pod/job", TOP / "kube/pod", TOP / "kube", TOP))
    assert chain("cpu", "0::/kube/pod/job\n", V2) == found


def test_version_1_has_a_chain_for_each_controller():
    """Controllers may lie in different groups, and several may share one tree."""
    cgroup = "4:memory:/slurm/job_7\n1:cpu,cpuacct:/slurm\n0::/\n"
    mounts = V1_MEMORY + V1_CPU + HYBRID

    memory, cpu = TOP / "memory", TOP / "cpu,cpuacct"
    assert chain("memory", cgroup, mounts) == Chain(
        1, (memory / "slurm/job_7", memory / "slurm", memory)
    )
    assert chain("cpu", cgroup, mounts) == Chain(1, (cpu / "slurm", cpu))
    assert chain("cpuacct", cgroup, mounts) == chain("cpu", cgroup, mounts)


def test_a_controller_that_version_1_lacks_is_of_version_2():
    """On machines that mount both, each controller is in one of them."""
    found = chain("cpu", "4:memory:/a\n0::/b\n", V1_MEMORY + HYBRID)

    assert found == Chain(2, (TOP / "unified/b", TOP / "unified"))


def test_a_container_sees_its_own_group_as_the_mount_point():
    """The path names the machine's tree, of which only the container's part is mounted."""
    mount = "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"

    assert chain("memory", "4:memory:/docker/4f\n", mount) == Chain(1, (TOP / "memory",))
    assert chain("memory", "4:memory:/docker/4f/task\n", mount) == Chain(
        1, (TOP / "memory/task", TOP / "memory")
    )
    assert chain("memory", "4:memory:/\n", mount) == Chain(1, (TOP / "memory",))


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"),
    [("0::/../other\n", V2), ("0::/job\n", ""), ("", V2), ("4:memory:/job\n", V2)],
)
def test_groups_that_cannot_be_seen_are_absent(cgroup, mountinfo):
    """Outside the namespace, not mounted, not told: no group rather than a wrong one."""
    assert chain("memory", cgroup, mountinfo) is None


def test_a_process_that_is_moved_is_followed(tmp_path):
    """The next reading looks at its new groups."""
    write_files(tmp_path, {"7/cgroup": "0::/a\n", "7/mountinfo": V2})
    member = Membership(7, tmp_path, SYS)
    member.read()
    assert member.chain("memory") == Chain(2, (TOP / "a", TOP))
    write_files(tmp_path, {"7/cgroup": "0::/b\n"})
    member.read()

    assert member.chain("memory") == Chain(2, (TOP / "b", TOP))
    member.close()


kernel_text = st.text("0123456789:/.,- \ncgroup2memrw", max_size=200).map(str.encode)


@given(st.binary(max_size=200) | kernel_text)
def test_any_membership_gives_a_chain_below_the_mount_or_none(text):
    """Parsing never raises, and no path leads out of the mounted tree."""
    found = find_chain("memory", parse_membership(text), parse_mounts(V2.encode()), SYS)

    if found is not None:
        assert found.folders[-1] == TOP
        assert all(TOP in (folder, *folder.parents) for folder in found.folders)
        assert not any(".." in folder.parts for folder in found.folders)


@given(st.binary(max_size=200) | kernel_text)
def test_any_text_gives_mounts_or_none(text):
    """Parsing never raises, and each mount is of some controller."""
    assert all(mount.controllers for mount in parse_mounts(text))
