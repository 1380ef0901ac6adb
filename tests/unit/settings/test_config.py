"""Each setting is read from the right place, and every wrong one is named."""

from __future__ import annotations

import dataclasses
import os

import pytest

from otel_mlperf.errors import ConfigError
from otel_mlperf.settings.config import Config
from otel_mlperf.settings.declared_config import declare
from otel_mlperf.settings.load_config import load_config


def test_defaults():
    """Nothing set: the documented defaults."""
    config = load_config(environ={})

    assert config == Config()
    assert (config.trace_first, config.trace_every, config.journal_rows) == (5, 100, 131_072)
    assert (config.dir, config.agent, config.console) == ("otel-runs", "process", True)


def test_order(tmp_path):
    """Argument before environment before file before default."""
    file = tmp_path / "c.yaml"
    file.write_text("trace_first: 1\ntrace_every: 2\njournal_rows: 3000\n")
    environ = {"OTEL_MLPERF_CONFIG": str(file), "OTEL_MLPERF_TRACE_EVERY": "20",
               "OTEL_MLPERF_JOURNAL_ROWS": "4000"}  # fmt: skip
    config = load_config({"journal_rows": 5000}, {}, environ)

    assert (config.trace_first, config.trace_every, config.journal_rows) == (1, 20, 5000)


def test_overrides_come_first():
    """Single settings win over a ``Config``, that over the environment."""
    environ = {"OTEL_MLPERF_TRACE_EVERY": "1", "OTEL_MLPERF_TRACE_FIRST": "1"}
    config = load_config(Config(trace_every=7, trace_first=8), {"trace_first": 9}, environ)

    assert (config.trace_every, config.trace_first) == (7, 9)


def test_path_as_config(tmp_path):
    """A path given as ``config`` is a file, below the environment."""
    (tmp_path / "c.yaml").write_text("trace_every: 3\ntrace_first: 4\n")
    config = load_config(tmp_path / "c.yaml", {}, {"OTEL_MLPERF_TRACE_EVERY": "5"})

    assert (config.trace_every, config.trace_first) == (5, 4)


def test_frozen():
    """Settings do not change."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().rows = 1


def test_every_field_is_documented():
    """``help(Config)`` shows each field with its variable, default and meaning."""
    for field in dataclasses.fields(Config):
        about = field.metadata
        line = f"    {field.name} ({about['variable']}, {field.default!r}): {about['meaning']}\n"
        assert line in f"{Config.__doc__}\n"
        assert about["meaning"].endswith(".")
    variables = [field.metadata["variable"] for field in dataclasses.fields(Config)]
    assert len(set(variables)) == len(variables)
    assert all(name.startswith("OTEL_") for name in variables)


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    ("key", "hint"),
    [("consol", "'console'"), ("endpont", "'endpoint'"), ("traceevery", "'trace_every'"),
     ("xyzzy", "known: ")],
)  # fmt: skip
def test_unknown_keys(tmp_path, key, hint):
    """Unknown settings name the nearest known one, in arguments and files."""
    (tmp_path / "c.yaml").write_text(f"{key}: 1\n")

    with pytest.raises(ConfigError, match=hint):
        load_config(None, {key: 1}, {})
    with pytest.raises(ConfigError, match=hint):
        load_config({key: 1}, None, {})
    with pytest.raises(ConfigError, match=f"c.yaml.*{hint}"):
        load_config(str(tmp_path / "c.yaml"), None, {})


WRONG = [
    ("journal_rows", "many", "a whole number"),
    ("journal_rows", 0, "of at least 1"),
    ("journal_rows", 1.5, "a whole number"),
    ("journal_rows", True, "a whole number"),
    ("drain_timeout_s", -1, "a number of at least 0"),
    ("drain_timeout_s", float("nan"), "a number"),
    ("drain_timeout_s", "inf", "a number"),
    ("trace_slow_ratio", 0.5, "of at least 1"),
    ("console", "maybe", "true or false"),
    ("agent", "pigeon", "'process' or 'thread' or 'none'"),
    ("provider", "replace", "'' or 'install'"),
    ("dir", 7, "text"),
    ("run_id", None, "text"),
    ("trace_every", [1], "a whole number"),
]


@pytest.mark.fault("F60")
@pytest.mark.parametrize(("key", "value", "expected"), WRONG)
def test_wrong_arguments(key, value, expected):
    """A wrong value says which setting, what was found and what was expected."""
    with pytest.raises(ConfigError, match=f"{key}: found .*{expected}"):
        load_config(None, {key: value}, {})
    with pytest.raises(ConfigError):
        Config(**{key: value})


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    ("variable", "text", "field"),
    [("OTEL_MLPERF_JOURNAL_ROWS", "many", "journal_rows"), ("OTEL_METRIC_EXPORT_INTERVAL", "-5",
     "metric_interval_ms"), ("OTEL_SDK_DISABLED", "1", "disabled"),
     ("OTEL_MLPERF_AGENT", "pigeon", "agent")],
)  # fmt: skip
def test_bad_variables(caplog, variable, text, field):
    """A bad variable warns by its name and takes the default."""
    config = load_config(environ={variable: text})

    assert getattr(config, field) == getattr(Config(), field)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert variable in record.getMessage()
    assert repr(text) in record.getMessage()


def test_bad_variable_beside_a_file(caplog, tmp_path):
    """The file's value holds then, and it is that which is said."""
    (tmp_path / "x.yaml").write_text("trace_every: 7\n")
    environ = {"OTEL_MLPERF_TRACE_EVERY": "often"}

    assert load_config(tmp_path / "x.yaml", environ=environ).trace_every == 7
    (record,) = caplog.records
    assert record.getMessage().endswith("; using 7")


@pytest.mark.parametrize("text", ["true", "TRUE", " True "])
def test_disabled(text):
    """``OTEL_SDK_DISABLED`` is read as the specification asks: in any case."""
    assert load_config(environ={"OTEL_SDK_DISABLED": text}).disabled


def test_empty_variables_count_as_unset():
    """An empty variable is no setting, as the specification says."""
    assert load_config(environ={"OTEL_MLPERF_JOURNAL_ROWS": "  "}) == Config()


@pytest.mark.fault("F60", "S15")
@pytest.mark.parametrize(
    ("content", "message"),
    [("- a\n- b\n", "found a list"), ("a: [1\n", "while parsing"),
     ("journal_rows: x\n", "c.yaml: journal_rows"),
     (b"\xff\xfe\x00", "c.yaml"), ("rows: !!python/object/apply:os.getpid []", "constructor")],
)  # fmt: skip
def test_wrong_files(tmp_path, content, message):
    """A file that is no settings file raises before any work, naming the file."""
    path = tmp_path / "c.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(ConfigError, match=message) as raised:
        load_config(str(path), None, {})
    assert str(path) in str(raised.value)


@pytest.mark.fault("F60")
def test_missing_file(tmp_path):
    """A file that does not exist is named."""
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_config(str(tmp_path / "none.yaml"), environ={})


_ALIASES = """\
aggregate: &a [x, x, x, x, x, x, x, x, x, x]
print_sections: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
resource_categories: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]
gpu_time_categories: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]
exclude: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]
dir: [*e, *e, *e, *e, *e, *e, *e, *e, *e, *e]
"""


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    "content",
    [
        "[" * 5000,
        "a: &a\n  <<: *a\n",
        "exclude: &a [*a]",
        "level: &a {x: *a}",
        _ALIASES,
        "destinations: [[a]]",
        "dir: 2026-99-99",
        "a: [1",
        "- a",
        None,
    ],
)
def test_file_of_the_environment_never_ends_a_job(caplog, tmp_path, content):
    """One that cannot be used is left out with a warning; given in code the same one raises."""
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_text(content)

    assert load_config(environ={"OTEL_MLPERF_CONFIG": str(path)}) == Config()
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    with pytest.raises(ConfigError):
        load_config(path, environ={})


def test_pipe_as_a_file_is_not_waited_for(caplog, tmp_path):
    """Nor is a device read for ever; a link, as Kubernetes mounts configuration, is followed."""
    os.mkfifo(tmp_path / "pipe")
    for place in (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path)):
        assert load_config(environ={"OTEL_MLPERF_CONFIG": place}) == Config()
        assert declare({"OTEL_CONFIG_FILE": place})[0] == {}
    assert len(caplog.records) == 3

    (tmp_path / "c.yaml").write_text("trace_every: 7\n")
    (tmp_path / "link").symlink_to("c.yaml")
    assert load_config(environ={"OTEL_MLPERF_CONFIG": str(tmp_path / "link")}).trace_every == 7


def test_empty_file(tmp_path):
    """An empty file sets nothing."""
    (tmp_path / "c.yaml").write_text("# nothing\n")

    assert load_config(str(tmp_path / "c.yaml"), None, {}) == Config()


@pytest.mark.fault("S15")
def test_no_code_in_files(tmp_path):
    """A YAML file cannot make Python objects."""
    (tmp_path / "c.yaml").write_text("run_id: !!python/object/apply:os.getcwd []\n")

    with pytest.raises(ConfigError):
        load_config(str(tmp_path / "c.yaml"), None, {})


def test_to_environ():
    """The environment made of settings gives the same settings again."""
    config = Config(journal_rows=4096, console=False, drain_timeout_s=1.5, endpoint="http://localhost:4318",
                    agent="thread")  # fmt: skip

    assert load_config(environ=config.to_environ()) == config
    assert Config().to_environ() == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ""),
        ("gpu", "gpu"),
        (" gpu, host,gpu ", "host,gpu"),
        (["process", "host"], "host,process"),
    ],
)
def test_sources_that_are_off_are_named_in_one_order(given, expected):
    """As text or as a list, each once."""
    assert Config(disabled_readings=given).disabled_readings == expected


def test_unknown_source_is_named_with_those_there_are():
    """A word that would switch nothing off is refused."""
    with pytest.raises(ConfigError, match=r"'cpu'.*host, process, gpu, filesystem, gc, allocator"):
        Config(disabled_readings="host,cpu")


@pytest.mark.fault("S8")
def test_secrets_are_not_shown():
    """Neither a header nor the login of a URL is in the settings' text, or in an error's."""
    settings = Config(headers="authorization=SECRET", endpoint="https://me:SECRET@collector:4318")
    with pytest.raises(ConfigError, match="headers: found a dict, expected text") as raised:
        load_config({"headers": {"authorization": "SECRET"}})

    assert "SECRET" not in repr(settings)
    assert "SECRET" not in str(raised.value)
