"""Commands that withhold the environment from the program that they start are recognized."""

from __future__ import annotations

import shlex
import sys

import pytest

from otel_mlperf.integrations.withheld_environment import describe_withheld

OWN = f"{sys.executable} -m otel_mlperf run --"


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("python -I x.py", "-I"),
        ("/opt/bin/python3.11 -E x.py", "-E"),
        ("python -u -S x.py", "-S"),
        ("python -Bsu -OE x.py", "-E"),
        ("nice -n 5 python -uI -m x", "-I"),
        ("python -Ic 'print(1)'", "-I"),
        ("python -W ignore -X dev -I x.py", "-I"),
    ],
)
def test_flags_that_ignore_the_environment_are_named(line, flag):
    """Alone or in a cluster, behind whatever starts Python."""
    reason = describe_withheld(shlex.split(line), "")

    assert reason == (
        f"Python ignores environment variables with {flag}; start Python without this option"
    )


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("env -i", "env -i"),
        ("/usr/bin/env - PATH=/bin", "env -"),
        ("nice env --ignore-environment", "env --ignore-environment"),
        ("sudo -E -u trainer", "sudo"),
        ("srun --ntasks 2 --export=NONE", "srun --export=NONE"),
        ("env A=1 PYTHONPATH=src", "env PYTHONPATH=src"),
    ],
)
def test_wrappers_that_clear_the_environment_are_named_with_a_command(wrapper, said):
    """The command is theirs, with our own between them and the program."""
    reason = describe_withheld(shlex.split(f"{wrapper} python x.py --lr 1"), "")

    assert reason.startswith(f"{said} does not pass on environment variables; ")
    assert reason.endswith(f": {wrapper} {OWN} python x.py --lr 1")


@pytest.mark.parametrize("wrapper", ["docker exec box", "ssh gpu7", "kubectl exec pod --"])
def test_a_command_for_another_machine_has_no_path_of_this_one(wrapper):
    """There the command is the one that is installed there."""
    reason = describe_withheld(shlex.split(f"{wrapper} python x.py"), "")

    assert reason.endswith(f": {wrapper} otel-mlperf run -- python x.py")


@pytest.mark.parametrize(
    "line",
    [
        "python x.py -I -E",
        "python -u -W ignore -X importtime x.py",
        "python -W Ignore x.py",
        "python -c 'env -i' -I",
        "python -m IES",
        "python -mIES",
        "env A=1 python x.py",
        "srun --export=ALL python x.py",
        "su trainer -c x",
        "torchrun --nproc-per-node 2 x.py -i sudo",
        "python wrap.py env -i python x.py",
        "timeout 5 ./x",
        "env A=1 ./x -i",
    ],
)
def test_commands_that_hand_the_environment_on_are_not_accused(line):
    """What is behind the program belongs to it."""
    assert describe_withheld(shlex.split(line), "") == ""


def test_first_line_of_a_script_counts(tmp_path):
    """Installed commands often have an isolated Python there."""
    tool = tmp_path / "tool"
    tool.write_text("#!/usr/bin/python3 -sIP\n")

    assert describe_withheld(["tool"], str(tool)) == (
        "Python ignores environment variables with -I; start Python without this option"
    )


def test_wrapper_of_a_program_of_its_own_is_named():
    """Whether that one starts a Python is not known."""
    assert describe_withheld(["sudo", "./train.sh", "-i"], "") == (
        "sudo does not pass on environment variables; write otel-mlperf run after sudo, before "
        "the program"
    )


def described(tmp_path, text, first="#!/bin/bash"):
    script = tmp_path / "job.sh"
    script.write_text(f"{first}\n{text}\n")
    return describe_withheld([str(script)], str(script)).removeprefix(f"{script}: ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("cd x && exec env -i python x.py", "env -i does not pass on environment variables; "
         f"write otel-mlperf run after env -i: exec env -i {OWN} python x.py"),
        ("PYTHONPATH=src python x.py", "env PYTHONPATH=src does not pass on environment "
         "variables; write otel-mlperf run after env PYTHONPATH=src: "
         f"env PYTHONPATH=src {OWN} python x.py"),
        ("if true; then\n  python3 -I \\\n x.py\nfi",
         "Python ignores environment variables with -I; start Python without this option"),
        ("export PYTHONPATH=src  # ours\npython x.py", "export PYTHONPATH=src removes the folder "
         "that starts the recording; write PYTHONPATH=src:$PYTHONPATH"),
        ("PYTHONPATH=\npython x.py", "PYTHONPATH= removes the folder that starts the recording; "
         "write PYTHONPATH=:$PYTHONPATH"),
    ],
)  # fmt: skip
def test_commands_in_a_shell_script_count(tmp_path, line, reason):
    """Batch jobs are scripts: what such a line withholds, the program does not get."""
    assert described(tmp_path, line) == reason


@pytest.mark.parametrize(
    "text",
    [
        "python x.py -I",
        "sudo apt-get install -y git\npython x.py",
        "export PYTHONPATH=src:$PYTHONPATH\npython x.py",
        "PYTHONPATH=${PYTHONPATH:-}:src python x.py",
        "export PYTHONPATH=src\n./tool",
        "# env -i python x.py",
        "echo 'unbalanced",
        "cat <<EOF\nenv -i it's\nEOF",
    ],
)
def test_shell_scripts_that_hand_the_environment_on_are_not_accused(tmp_path, text):
    """Nor those whose commands start no Python, or cannot be parsed."""
    assert described(tmp_path, text) == ""


def test_scripts_of_a_named_shell_count_and_other_files_do_not(tmp_path):
    """``bash job.sh`` needs no first line; other languages have other rules."""
    script = tmp_path / "job.sh"
    script.write_text("env -i python x.py\n")

    assert describe_withheld(["bash", "-e", str(script), "a"], "").startswith(f"{script}: env -i ")
    assert describe_withheld(["bash", "-c", "env -i python x.py"], "").startswith(
        "bash -c: env -i "
    )
    assert described(tmp_path, "env -i python x.py", "#!/usr/bin/perl") == ""
    assert describe_withheld(["bash", str(tmp_path / "missing.sh")], "") == ""
