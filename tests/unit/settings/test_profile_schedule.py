"""A schedule names its steps, and every wrong schedule is refused."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import otel_mlperf as om
from otel_mlperf.errors import ConfigError
from otel_mlperf.settings.load_config import load_config
from otel_mlperf.settings.profile_schedule import Schedule, parse_schedule, schedule_text


def actions(schedule, steps):
    return "".join((schedule.action(i) or "-")[0] for i in range(steps))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wait=2,warmup=1,active=3", "--waaa----------"),
        ("wait=2,warmup=1,active=3,repeat=2", "--waaa--waaa----"),
        ("wait=1,warmup=0,active=1,repeat=0", "-a-a-a-a-a-a-a-a"),
        ("skip_first=3,wait=0,warmup=2,active=1,repeat=2", "---wwawwa-------"),
        ("on", "----------waaa--"),
    ],
)
def test_actions(text, expected):
    """Steps are left alone, warmed up on and recorded as the words say."""
    assert actions(parse_schedule(text), 16) == expected


def test_epochs_are_counted_where_the_schedule_says_so():
    """Whole epochs are recorded, each after its own warm-up steps; no step of it is the last."""
    schedule = parse_schedule("unit=epoch,skip_first=1,wait=1,warmup=2,active=2,repeat=2")

    recorded = [epoch for epoch in range(12) if schedule.action(2, epoch)]
    assert recorded == [2, 3, 5, 6]
    assert [schedule.action(step, 3) for step in range(4)] == [
        "warmup",
        "warmup",
        "active",
        "active",
    ]
    assert schedule.most_windows == 4
    assert [schedule.is_first(step) for step in range(3)] == [True, False, False]
    assert not any(schedule.is_last(step) for step in range(20))


def test_flops_of_the_profiler_are_refused():
    """Its trace holds none; the sentence says who counts them."""
    with pytest.raises(ConfigError, match=r"with_flops: .* om\.model_work"):
        parse_schedule("with_flops=on")
    with pytest.raises(ConfigError, match=r"no FLOPs into its trace"):
        om.torch_profile(with_flops=True)


def test_first_and_last_step_of_a_window():
    """A window begins with its warm-up and ends with its last recorded step; no other step does."""
    schedule = Schedule(skip_first=6, wait=2, warmup=1, active=2, repeat=2)

    assert [i for i in range(30) if schedule.is_first(i)] == [8, 13]
    assert [i for i in range(30) if schedule.is_last(i)] == [10, 15]


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        ({"wait": 3, "activities": ["CPU", "cuda"]}, "wait=3,activities=cpu+cuda"),
        ("activities=cuda+cpu, with_stack=yes", "with_stack=true,activities=cuda+cpu"),
        (True, "on"),
        ("1", "on"),
        (False, ""),
        ("off", ""),
        ("", ""),
        ("every=epoch,record_shapes=off", "every=epoch"),
    ],
)
def test_every_way_to_write_it(given_as, expected):
    """Text, mapping and plain yes mean the same, whichever source they come from."""
    assert schedule_text(given_as) == expected
    assert load_config(None, {"profile": given_as}, {}).profile == expected


WRONG = [
    "wait", "wat=1", "wait=x", "wait=-1", "active=0", "repeat=1.5", "every=week",
    "with_stack=perhaps", "activities=tpu", "events=3", {"wait": True}, {"x": 1}, 7,
    "phase=foo", "wait=1,wait=2", {"wait": "1"}, {"with_stack": "yes"}, {"phase": 3},
    {"activities": 5}, f"wait={'9' * 5000}",
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_schedules_are_refused(wrong):
    """The message says what was found; as a setting it says which one."""
    with pytest.raises(ConfigError, match="reading a profiler schedule"):
        parse_schedule(wrong)
    with pytest.raises(ConfigError, match="profile: reading a profiler schedule"):
        load_config(None, {"profile": wrong}, {})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("phase=validation", "phase is 'validation', expected one of train, validate, test, "
         "predict; did you mean 'validate'?"),
        ("every=epochs", "did you mean 'epoch'?"),
        ("wat=1", "did you mean 'wait'?"),
        ("wait=1,active=2,wait=2", "found 'wait' 2 times; write it once"),
    ],
)  # fmt: skip
def test_what_was_meant_is_proposed(wrong, said):
    """A word that is nearly right is named."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_schedule(wrong)


@pytest.mark.parametrize("words", [{"wait": "1"}, {"phase": "foo"}, {"with_stack": "yes"}])
def test_arguments_in_a_program_are_what_they_say(words):
    """``torch_profile()`` takes numbers as numbers, and no phase that does not exist."""
    with pytest.raises(ConfigError, match="reading a profiler schedule"):
        om.torch_profile(**words)


def test_bad_variable_profiles_nothing(caplog):
    """A schedule in the environment that is none warns and is left out."""
    assert load_config(environ={"OTEL_MLPERF_PROFILE": "wait=soon"}).profile == ""
    assert "OTEL_MLPERF_PROFILE" in caplog.text


def test_yaml_file(tmp_path):
    """A file may hold it as text, as a mapping, or as ``on``."""
    for content in ("profile: wait=3,active=2", "profile: {wait: 3, active: 2}"):
        (tmp_path / "c.yaml").write_text(content)
        assert load_config(str(tmp_path / "c.yaml"), None, {}).profile == "wait=3,active=2"
    (tmp_path / "c.yaml").write_text("profile: on")
    assert load_config(str(tmp_path / "c.yaml"), None, {}).profile == "on"


@given(
    st.builds(
        Schedule,
        skip_first=st.integers(0, 20),
        wait=st.integers(0, 20),
        warmup=st.integers(0, 5),
        active=st.integers(1, 9),
        repeat=st.integers(0, 4),
        every=st.sampled_from(["run", "epoch"]),
        with_stack=st.booleans(),
        activities=st.lists(st.sampled_from(["cpu", "cuda"]), unique=True).map(tuple),
    )
)
def test_text_of_a_schedule_is_that_schedule(schedule):
    """What is handed to another process as text means the same there."""
    assert parse_schedule(str(schedule)) == schedule


@given(
    st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(1, 5), st.integers(0, 4)
)
def test_words_mean_what_they_mean_to_torch(skip_first, wait, warmup, active, repeat):
    """Every step is warmed up on, recorded or left alone as by ``torch.profiler.schedule``."""
    words = {"skip_first": skip_first, "wait": wait, "warmup": warmup, "active": active,
             "repeat": repeat}  # fmt: skip
    theirs = torch.profiler.schedule(**words)
    names = {"NONE": "", "WARMUP": "warmup", "RECORD": "active", "RECORD_AND_SAVE": "active"}

    ours = Schedule(**words)

    assert [ours.action(i) for i in range(60)] == [names[theirs(i).name] for i in range(60)]
    ends = [i for i in range(60) if theirs(i).name == "RECORD_AND_SAVE"]
    assert [i for i in range(60) if ours.action(i) and ours.is_last(i)] == ends
