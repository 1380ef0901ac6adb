"""Settings of a run with their descriptions, and levels that set several of them.

A level is a preset for settings of spans, resource usage, readings and the profiler. A setting with
an explicit value, from any source, overrides the level.
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
        "trace_first": 1,
        "trace_every": 1000,
        "readings_interval_ms": 15_000,
        "disabled_integrations": "dataloader",  # saves some 3 % of a step of 4 ms
    },
    "basic": {},
    "detailed": {
        "trace_first": 10,
        "trace_every": 50,
        "resource_categories": "step,data_loading,checkpoint",
        "gpu_time_categories": "transfer,forward,backward,optimizer,communication",
        "readings": "detailed",
    },
    "comprehensive": {
        "trace_first": 20,
        "trace_every": 10,
        "resource_categories": "all",
        "gpu_time_categories": "all",
        "readings": "comprehensive",
        "profile": "on",
    },
}
"""For each level, the settings that differ from their defaults; ``basic`` has all defaults."""


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
"""Names of the sources of readings, for ``disabled_readings``."""
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
    """Parse a boolean as OpenTelemetry's specification requires: ``true`` or ``false``."""
    if isinstance(given, bool):
        return given
    text = str(given).strip().lower()
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _names_text(given: Any) -> str:
    """Return comma-separated names without duplicates."""
    listed = given.split(",") if isinstance(given, str) else map(str, given)
    return ",".join(dict.fromkeys(name for each in listed if (name := each.strip())))


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; each field has an equivalent environment variable."""

    run_id: str = set_by(
        "OTEL_MLPERF_RUN_ID",
        "",
        "Id of the run, the same on all its ranks (default: from the launcher, otherwise random).",
    )
    dir: str = set_by(
        "OTEL_MLPERF_DIR",
        "otel-runs",
        "Folder that contains all run folders.",
    )
    service_name: str = set_by(
        "OTEL_SERVICE_NAME",
        "",
        "Resource attribute ``service.name`` (default: the name of the run).",
    )
    endpoint: str = set_by(
        ENDPOINT,
        "",
        "OTLP endpoint for spans and metrics (default: none, only the run folder is written).",
        secret=True,
    )
    headers: str = set_by(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "",
        "Headers of each request: comma-separated ``name=value``.",
        secret=True,
    )
    destinations: str = set_by(
        DESTINATIONS,
        "",
        "Comma-separated experiment trackers that receive the run: ``tensorboard``, ``mlflow``, "
        "``wandb``, ``trackio``.",
        parse=some_of(TRACKERS),
    )
    resource: str = set_by(
        "OTEL_RESOURCE_ATTRIBUTES",
        "",
        "Additional resource attributes: comma-separated ``name=value``.",
    )
    console: bool = set_by(
        "OTEL_MLPERF_CONSOLE",
        True,
        "Print a line at the start of a run and its summary at the end, on stderr.",
    )
    agent: Literal["process", "thread", "none"] = set_by(
        "OTEL_MLPERF_AGENT",
        "process",
        "Where the agent runs; ``none``: no agent is started, and the journals remain until "
        "``otel-mlperf serve agent`` or ``otel-mlperf doctor --recover`` reads them.",
        "process",
        "thread",
        "none",
    )
    provider: Literal["", "install", "join", "join,otlp"] = set_by(
        "OTEL_MLPERF_PROVIDER",
        "",
        "``install``: record spans and metrics that other libraries create with the OpenTelemetry "
        "API. ``join``: create sampled sections as spans of the program's own provider; the agent "
        "sends no spans. ``join,otlp``: both.",
        "",
        "install",
        "join",
        "join,otlp",
    )
    journal_rows: int = set_by(
        "OTEL_MLPERF_JOURNAL_ROWS",
        131_072,
        "Number of rows in the journal of a process, 64 bytes each; reduced if shared memory is "
        "scarce.",
        low=1,
    )
    exception_text: bool = set_by(
        "OTEL_MLPERF_EXCEPTION_TEXT",
        True,
        "Record the message and stack of an exception in addition to its type.",
    )
    drain_timeout_s: float = set_by(
        "OTEL_MLPERF_DRAIN_TIMEOUT_S",
        30.0,
        "Maximum time for which the agent delivers data after the last process has ended.",
    )
    tracker_report: bool = set_by(
        "OTEL_MLPERF_TRACKER_REPORT",
        True,
        "At the end of a run, upload the page of ``otel-mlperf report`` to trackers that store "
        "files.",
    )
    trace_first: int = set_by(
        "OTEL_MLPERF_TRACE_FIRST",
        5,
        "Number of steps that are traced at the start of each phase, per process.",
    )
    trace_every: int = set_by(
        "OTEL_MLPERF_TRACE_EVERY",
        100,
        "Interval of traced steps after the first steps: 100 traces every 100th step of a phase, "
        "the same steps on every rank.",
        low=1,
    )
    trace_slow_ratio: float = set_by(
        "OTEL_MLPERF_TRACE_SLOW_RATIO",
        2.0,
        "Steps that last longer than this multiple of the median of the last 100 steps are also "
        "traced.",
        low=1,
    )
    sampler: str = set_by(
        "OTEL_TRACES_SAMPLER",
        "",
        "OpenTelemetry sampler that selects the sent traces (default: all recorded traces): "
        "``always_on``, ``always_off``, ``traceidratio`` or one of these after ``parentbased_``.",
        "",
        *SAMPLERS,
        parse=parse_sampler,
    )
    sampler_arg: float = set_by(
        "OTEL_TRACES_SAMPLER_ARG",
        1.0,
        "Ratio of traces that ``traceidratio`` sends, from 0 to 1.",
        parse=parse_ratio,
    )
    max_spans_per_trace: int = set_by(
        "OTEL_MLPERF_MAX_SPANS_PER_TRACE",
        5_000,
        "Maximum number of spans of one trace over all ranks.",
        low=1,
    )
    max_spans_per_rank: int = set_by(
        "OTEL_MLPERF_MAX_SPANS_PER_RANK",
        2_000,
        "Maximum number of spans of one trace from one rank.",
        low=1,
    )
    max_store_bytes: int = set_by(
        "OTEL_MLPERF_MAX_STORE_BYTES",
        1 << 30,
        "Maximum size of the tables of a run folder; the oldest data is deleted first.",
        low=1 << 20,
    )
    max_outbox_bytes: int = set_by(
        "OTEL_MLPERF_MAX_OUTBOX_BYTES",
        1 << 30,
        "Maximum size of undelivered data on disk; the oldest data is dropped first.",
        low=1 << 20,
    )
    profile: str = set_by(
        PROFILE,
        "",
        "Schedule of the profiler, e.g. ``wait=10,warmup=1,active=3,repeat=1``: arguments of "
        "``torch_profile``; ``on``: the default schedule.",
        parse=schedule_text,
    )
    level: Literal["", "off", "light", "basic", "detailed", "comprehensive"] = set_by(
        LEVEL,
        "",
        "Preset for several settings, which are overridden by their explicit values (see levels).",
        "",
        *LEVELS,
    )
    exclude: str = set_by(
        "OTEL_MLPERF_EXCLUDE",
        "",
        "Sections that are not recorded: comma-separated categories or name patterns (``tmp.*``).",
        parse=_names_text,
    )
    aggregate: str = set_by(
        "OTEL_MLPERF_AGGREGATE",
        "",
        "Sections that are only aggregated (``aggregate=True``); same syntax as ``exclude``.",
        parse=_names_text,
    )
    print_steps: int = set_by(
        "OTEL_MLPERF_PRINT_STEPS",
        0,
        "Number of steps at the start of each phase that are printed on stderr.",
    )
    print_sections: str = set_by(
        "OTEL_MLPERF_PRINT_SECTIONS",
        "",
        "Sections whose calls are printed on stderr when they end; same syntax as ``exclude``.",
        parse=_names_text,
    )
    profiled_calls: int = set_by(
        "OTEL_MLPERF_PROFILED_CALLS",
        3,
        "Number of calls that are profiled for each section with ``span(profile=…)``, per process "
        "and phase.",
    )
    cuda_memory_history: int = set_by(
        "OTEL_MLPERF_CUDA_MEMORY_HISTORY",
        0,
        "Number of latest CUDA memory events (about two per allocation) that are stored with their "
        "stacks, for the snapshot written when GPU memory runs out; 0: none.",
    )
    request_within_s: str = set_by(
        "OTEL_MLPERF_REQUEST_WITHIN_S",
        "",
        "Time limit in seconds for requests without ``within_s``, for all requests or by name "
        "pattern: ``predict=0.05,chat*=2``.",
        parse=bounds_text,
    )
    model_work: bool = set_by(
        "OTEL_MLPERF_MODEL_WORK",
        False,
        "Count the FLOPs of all models, without calls of ``model_work()``.",
    )
    peak_flops: float = set_by(
        "OTEL_MLPERF_PEAK_FLOPS",
        0.0,
        "Peak FLOP/s of one rank's device, without sparsity; 0: from a table of known devices.",
    )
    metric_interval_ms: int = set_by(
        "OTEL_METRIC_EXPORT_INTERVAL",
        15_000,
        "Interval in milliseconds between two exports of metrics; at most 5 s during the first "
        "minutes.",
        low=100,
    )
    readings: Literal["none", "basic", "detailed", "comprehensive"] = set_by(
        "OTEL_MLPERF_READINGS",
        "basic",
        "Level of host, process and GPU readings; each level includes the lower levels.",
        "none",
        "basic",
        "detailed",
        "comprehensive",
    )
    disabled_readings: str = set_by(
        "OTEL_MLPERF_DISABLED_READINGS",
        "",
        "Comma-separated disabled sources of readings: ``host``, ``process``, ``gpu``, "
        "``filesystem``, ``gc``, ``allocator``, ``stacks``.",
        parse=some_of(READING_SOURCES),
    )
    readings_interval_ms: int = set_by(
        "OTEL_MLPERF_READINGS_INTERVAL",
        0,
        "Interval in milliseconds between two readings, at least 100; 0: 5 s, or 1 s with "
        "``readings=comprehensive``.",
    )
    disabled_integrations: str = set_by(
        "OTEL_MLPERF_DISABLED_INTEGRATIONS",
        "",
        "Comma-separated integrations that stay off unless the program enables them. By default, "
        "``dataloader`` is on in each run; ``torch``, ``keras`` and installed integrations are on "
        "under ``otel-mlperf run``.",
        parse=_names_text,
    )
    resource_categories: str = set_by(
        "OTEL_MLPERF_RESOURCE_CATEGORIES",
        "",
        "Comma-separated categories of sections whose resource usage is measured, or ``all``.",
        parse=_names_text,
    )
    gpu_time_categories: str = set_by(
        "OTEL_MLPERF_GPU_TIME_CATEGORIES",
        "",
        "Comma-separated categories of sections whose GPU time is measured, or ``all``.",
        parse=_names_text,
    )
    disabled: bool = set_by(
        "OTEL_SDK_DISABLED",
        False,
        "Record nothing.",
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
        """Return whether readings of ``source``, one of READING_SOURCES, are enabled."""
        return self.readings != "none" and source not in self.disabled_readings.split(",")

    def to_environ(self) -> dict[str, str]:
        """Return the environment variables that give another process the same settings."""
        return {
            item.metadata["variable"]: str(value).lower() if isinstance(value, bool) else str(value)
            for item in fields(self)
            # Not the level: the other settings already contain its values, and it would override
            # settings that were explicitly reset to their defaults.
            if item.name != "level" and (value := getattr(self, item.name)) != item.default
        }


def _documented(item: Any) -> str:
    about = item.metadata
    return f"    {item.name} ({about['variable']}, {item.default!r}): {about['meaning']}"


# help(Config) shows each setting with its variable, default and description.
Config.__doc__ = f"{Config.__doc__}\n\nSettings:\n" + "\n".join(map(_documented, fields(Config)))


def known_variables() -> list[str]:
    """Return the names of all supported variables that start with ``OTEL_MLPERF_``."""
    own = (item.metadata["variable"] for item in fields(Config))
    return [name for name in (*own, *_NOT_SETTINGS) if name.startswith(PREFIX)]
