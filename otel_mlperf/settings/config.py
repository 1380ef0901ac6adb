"""Settings of a run, with the meaning of each, and the levels that set several at once.

A level is a named set of settings for spans, resource use, readings and the profiler. A single
setting that is given, wherever, overrides its level's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from otel_mlperf.settings.profile_schedule import schedule_text
from otel_mlperf.settings.setting_values import bounds_text, checked, set_by, some_of
from otel_mlperf.settings.trace_sampler import SAMPLERS, parse_ratio, parse_sampler
from otel_mlperf.settings.tracker_list import TRACKERS

LEVELS: Final[dict[str, dict[str, Any]]] = {
    "off": {"disabled": True},
    "light": {
        "first_steps": 1,
        "keep_every": 1000,
        "readings_interval_ms": 15_000,
        "integrations_off": "dataloader",  # some 3 % of a step of 4 ms
    },
    "basic": {},
    "detailed": {
        "first_steps": 10,
        "keep_every": 50,
        "resources_of": "step,data_loading,checkpoint",
        "gpu_time_of": "transfer,forward,backward,optimizer,communication",
        "readings": "detailed",
    },
    "comprehensive": {
        "first_steps": 20,
        "keep_every": 10,
        "resources_of": "all",
        "gpu_time_of": "all",
        "readings": "comprehensive",
        "profile": "on",
    },
}
"""By level, the settings that differ from their defaults; ``basic`` is the defaults."""


PREFIX = "OTEL_MLPERF_"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOLS = (
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
)
DESTINATIONS = "OTEL_MLPERF_DESTINATIONS"
PROFILE = "OTEL_MLPERF_PROFILE"
LEVEL = "OTEL_MLPERF_LEVEL"
READING_SOURCES = ("host", "process", "gpu", "filesystem", "gc", "allocator", "stacks")
"""Sources of readings, by their names in ``readings_off``."""
_NOT_SETTINGS = (
    "OTEL_MLPERF_AUTOSTART",
    "OTEL_MLPERF_CONFIG",
    "OTEL_MLPERF_JAEGER_URL",
    "OTEL_MLPERF_PORTABLE",
    "OTEL_MLPERF_PROMETHEUS_URL",
    "OTEL_MLPERF_REQUIRE_SERVERS",
    "OTEL_MLPERF_TRACES",
)


def _standard_bool(given: Any) -> bool:
    """Parse a boolean as OpenTelemetry's specification requires: only ``true`` is True."""
    if isinstance(given, bool):
        return given
    text = str(given).strip().lower()
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _words_text(given: Any) -> str:
    """Return words, each once, separated by commas."""
    words = given.split(",") if isinstance(given, str) else map(str, given)
    return ",".join(dict.fromkeys(word for each in words if (word := each.strip())))


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; each field names the environment variable that sets it too."""

    run_id: str = set_by(
        "OTEL_MLPERF_RUN_ID",
        "",
        "Id of the run, the same for all its ranks; empty: found out, else random.",
    )
    dir: str = set_by(
        "OTEL_MLPERF_DIR",
        "otel-runs",
        "Folder in which each run gets its own.",
    )
    service_name: str = set_by(
        "OTEL_SERVICE_NAME",
        "",
        "``service.name``; empty: the run's name.",
    )
    endpoint: str = set_by(
        ENDPOINT,
        "",
        "Where to send spans and metrics (OTLP); empty: the run folder only.",
        secret=True,
    )
    headers: str = set_by(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "",
        "Headers of each request, ``name=value`` separated by commas.",
        secret=True,
    )
    destinations: str = set_by(
        DESTINATIONS,
        "",
        "Trackers of experiments that are told of the run, by commas: ``tensorboard``, ``mlflow``, "
        "``wandb``, ``trackio``.",
        parse=some_of(TRACKERS),
    )
    resource: str = set_by(
        "OTEL_RESOURCE_ATTRIBUTES",
        "",
        "Further resource attributes, ``name=value`` separated by commas.",
    )
    console: bool = set_by(
        "OTEL_MLPERF_CONSOLE",
        True,
        "Whether stderr gets a line when the run starts, and the run's summary when it ends.",
    )
    agent: Literal["process", "thread", "none"] = set_by(
        "OTEL_MLPERF_AGENT",
        "process",
        "Where the agent runs; ``none``: nobody reads the journals until ``otel-mlperf recover``.",
        "process",
        "thread",
        "none",
    )
    provider: Literal["", "install", "join", "join,otlp"] = set_by(
        "OTEL_MLPERF_PROVIDER",
        "",
        "``install``: spans and metrics that others make by the OpenTelemetry API are recorded. "
        "``join``: sampled sections become spans of the program's own provider, and the agent "
        "sends none; ``join,otlp``: both.",
        "",
        "install",
        "join",
        "join,otlp",
    )
    rows: int = set_by(
        "OTEL_MLPERF_JOURNAL_ROWS",
        131_072,
        "Rows of a process's journal, 64 bytes each; less where shared memory is short.",
        low=1,
    )
    exception_text: bool = set_by(
        "OTEL_MLPERF_EXCEPTION_TEXT",
        True,
        "Whether an exception's message and stack are recorded beside its type.",
    )
    drain_s: float = set_by(
        "OTEL_MLPERF_DRAIN_S",
        30.0,
        "For how long the agent goes on delivering after the last process has ended.",
    )
    tracker_report: bool = set_by(
        "OTEL_MLPERF_TRACKER_REPORT",
        True,
        "Whether trackers that keep files get the page of ``otel-mlperf report`` at a run's end.",
    )
    first_steps: int = set_by(
        "OTEL_MLPERF_FIRST_STEPS",
        5,
        "So many steps at the start of each phase are traced.",
    )
    keep_every: int = set_by(
        "OTEL_MLPERF_KEEP_EVERY",
        100,
        "After them one step in so many is traced, the same on every rank.",
        low=1,
    )
    slow_ratio: float = set_by(
        "OTEL_MLPERF_SLOW_RATIO",
        2.0,
        "A step longer than this many medians of the last 100 is traced too.",
        low=1,
    )
    sampler: str = set_by(
        "OTEL_TRACES_SAMPLER",
        "",
        "Which traces are sent, of those that are selected; empty: all. A standard sampler: "
        "``always_on``, ``always_off``, ``traceidratio`` or one of these after ``parentbased_``.",
        "",
        *SAMPLERS,
        parse=parse_sampler,
    )
    sampler_arg: float = set_by(
        "OTEL_TRACES_SAMPLER_ARG",
        1.0,
        "Share of traces that ``traceidratio`` sends, from 0 to 1.",
        parse=parse_ratio,
    )
    spans_per_trace: int = set_by(
        "OTEL_MLPERF_SPANS_PER_TRACE",
        5_000,
        "All ranks together send at most so many spans of one trace.",
        low=1,
    )
    spans_per_rank: int = set_by(
        "OTEL_MLPERF_SPANS_PER_RANK",
        2_000,
        "One rank sends at most so many spans of one trace.",
        low=1,
    )
    store_bytes: int = set_by(
        "OTEL_MLPERF_STORE_BYTES",
        1 << 30,
        "Size that a run folder's tables may reach.",
        low=1 << 20,
    )
    outbox_bytes: int = set_by(
        "OTEL_MLPERF_OUTBOX_BYTES",
        1 << 30,
        "Size that waiting for a collector may reach, on disk.",
        low=1 << 20,
    )
    profile: str = set_by(
        PROFILE,
        "",
        "Steps that the profiler records: ``wait=10,warmup=1,active=3,repeat=1`` (see Schedule).",
        parse=schedule_text,
    )
    level: Literal["", "off", "light", "basic", "detailed", "comprehensive"] = set_by(
        LEVEL,
        "",
        "What the settings below and above are where nobody says them (see levels).",
        "",
        *LEVELS,
    )
    leave_out: str = set_by(
        "OTEL_MLPERF_LEAVE_OUT",
        "",
        "Sections that are not recorded, by commas: categories, patterns of names (``debug.*``).",
        parse=_words_text,
    )
    sum_up: str = set_by(
        "OTEL_MLPERF_SUM_UP",
        "",
        "Sections that are only added up, as with ``aggregate=True``; given in the same way.",
        parse=_words_text,
    )
    print_steps: int = set_by(
        "OTEL_MLPERF_PRINT_STEPS",
        0,
        "So many steps at the start of each phase are printed on stderr, with their sections.",
    )
    print_sections: str = set_by(
        "OTEL_MLPERF_PRINT_SECTIONS",
        "",
        "Sections of which each call is printed on stderr when it ends; given as ``leave_out`` is.",
        parse=_words_text,
    )
    profiled_calls: int = set_by(
        "OTEL_MLPERF_PROFILED_CALLS",
        3,
        "So many calls of each section of ``span(profile=…)`` are profiled, in each process and "
        "phase.",
    )
    cuda_memory_history: int = set_by(
        "OTEL_MLPERF_CUDA_MEMORY_HISTORY",
        0,
        "So many of the newest entries on CUDA memory are kept with their stacks (an allocation "
        "and its end are some two), for the files that are written when it runs out; 0: none.",
    )
    request_within_s: str = set_by(
        "OTEL_MLPERF_REQUEST_WITHIN_S",
        "",
        "Seconds that requests are to take at most where ``request()`` does not say it; by "
        "patterns of their names too: ``predict=0.05,chat*=2``.",
        parse=bounds_text,
    )
    model_work: bool = set_by(
        "OTEL_MLPERF_MODEL_WORK",
        False,
        "Whether the operations of models are counted that no ``model_work()`` has named.",
    )
    peak_flops: float = set_by(
        "OTEL_MLPERF_PEAK_FLOPS",
        0.0,
        "What one rank's device can do, FLOP/s without sparsity; 0: by the table of devices.",
    )
    metric_interval_ms: int = set_by(
        "OTEL_METRIC_EXPORT_INTERVAL",
        15_000,
        "Time between two deliveries of metrics; every 5 s, if that is less, in the first minutes.",
        low=100,
    )
    readings: Literal["none", "basic", "detailed", "comprehensive"] = set_by(
        "OTEL_MLPERF_READINGS",
        "basic",
        "How much is read of host, processes and GPUs; each level has all of those before it.",
        "none",
        "basic",
        "detailed",
        "comprehensive",
    )
    readings_off: str = set_by(
        "OTEL_MLPERF_READINGS_OFF",
        "",
        "What is not read, by commas: ``host``, ``process``, ``gpu``, ``filesystem``, ``gc``, "
        "``allocator``, ``stacks``.",
        parse=some_of(READING_SOURCES),
    )
    readings_interval_ms: int = set_by(
        "OTEL_MLPERF_READINGS_INTERVAL",
        0,
        "Time between two readings, at least 100; 0: 5 s, at level ``comprehensive`` 1 s.",
    )
    integrations_off: str = set_by(
        "OTEL_MLPERF_INTEGRATIONS_OFF",
        "",
        "What is not switched on unless the program asks for it, by commas: ``dataloader``, which "
        "else is in each run; ``torch``, ``keras`` or an installed integration, which else are "
        "under ``otel-mlperf run``.",
        parse=_words_text,
    )
    resources_of: str = set_by(
        "OTEL_MLPERF_RESOURCES_OF",
        "",
        "Categories, by commas, of whose sections is measured what they use; ``all``: of all.",
        parse=_words_text,
    )
    gpu_time_of: str = set_by(
        "OTEL_MLPERF_GPU_TIME_OF",
        "",
        "Categories, by commas, whose sections, and steps, have GPU time; ``all``: of all.",
        parse=_words_text,
    )
    disabled: bool = set_by(
        "OTEL_SDK_DISABLED",
        False,
        "Whether nothing is recorded at all.",
        parse=_standard_bool,
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = checked(item, getattr(self, item.name), item.name)
            object.__setattr__(self, item.name, value)

    @property
    def joins_provider(self) -> bool:
        """Return whether sampled sections become spans of the program's own provider."""
        return self.provider.startswith("join")

    def reads(self, source: str) -> bool:
        """Return whether ``source``, one of READING_SOURCES, is read."""
        return self.readings != "none" and source not in self.readings_off.split(",")

    def to_environ(self) -> dict[str, str]:
        """Return the environment variables that give another process the same settings."""
        return {
            item.metadata["variable"]: str(value).lower() if isinstance(value, bool) else str(value)
            for item in fields(self)
            # The other settings already contain what a level means. A setting that was reset to its
            # default would otherwise get the level's value again.
            if item.name != "level" and (value := getattr(self, item.name)) != item.default
        }


def _documented(item: Any) -> str:
    about = item.metadata
    return f"    {item.name} ({about['variable']}, {item.default!r}): {about['meaning']}"


# Each setting with its variable, default and meaning, for help(Config).
Config.__doc__ = f"{Config.__doc__}\n\nSettings:\n" + "\n".join(map(_documented, fields(Config)))


def known_variables() -> list[str]:
    """Return all our variables with a meaning that start with ``OTEL_MLPERF_``."""
    own = (item.metadata["variable"] for item in fields(Config))
    return [name for name in (*own, *_NOT_SETTINGS) if name.startswith(PREFIX)]
