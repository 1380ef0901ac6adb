"""A level means the same everywhere, and a single setting takes precedence over it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from otel_mlperf.errors import ConfigError
from otel_mlperf.settings.config import LEVELS, Config
from otel_mlperf.settings.load_config import load_config

KNOWN = {item.name for item in fields(Config)}


def test_levels_are_made_of_settings():
    """Each is what these come to, and none says what the default says anyway."""
    assert list(LEVELS) == ["off", "light", "basic", "detailed", "comprehensive"]
    for level, settings in LEVELS.items():
        config = load_config({"level": level}, environ={})

        assert settings.keys() <= KNOWN
        assert config.level == level
        assert {name: getattr(config, name) for name in settings} == settings
        assert all(value != getattr(Config(), name) for name, value in settings.items())


def test_more_is_recorded_with_each_level():
    """Steps are kept no more rarely, and readings say no less."""
    rising = [load_config({"level": level}, environ={}) for level in list(LEVELS)[1:]]

    assert [one.trace_every for one in rising] == sorted(one.trace_every for one in rising)[::-1]
    assert [one.readings for one in rising] == ["basic", "basic", "detailed", "comprehensive"]
    assert [bool(one.profile) for one in rising] == [False, False, False, True]
    assert load_config({"level": "off"}, environ={}).disabled


@pytest.mark.parametrize("place", ["argument", "environment", "file"])
def test_a_single_setting_stands_before_the_level(tmp_path, place):
    """Wherever either is said."""
    file = tmp_path / "team.yaml"
    file.write_text("level: comprehensive\n" + ("trace_every: 7\n" if place == "file" else ""))
    environ = {"OTEL_MLPERF_TRACE_EVERY": "7"} if place == "environment" else {}
    overrides = {"trace_every": 7} if place == "argument" else {}

    config = load_config(file, overrides, environ)
    assert (config.trace_every, config.resource_categories) == (7, "all")


def test_the_agent_gets_what_the_level_means():
    """And not the level, which would undo a setting that was given its default."""
    config = load_config({"level": "detailed", "trace_every": 100}, environ={})

    environ = config.to_environ()
    assert "OTEL_MLPERF_LEVEL" not in environ
    assert load_config(environ=environ) == load_config(config.__dict__ | {"level": ""}, environ={})


def test_a_word_that_is_no_level():
    """It is refused, with those that there are."""
    with pytest.raises(ConfigError, match="'detailed' or 'comprehensive'"):
        load_config({"level": "loud"}, environ={})
