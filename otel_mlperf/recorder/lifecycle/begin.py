"""Set-up of a run: folder, journal, agent, and measurements in the process.

The module is imported by ``start()``, not with the package, because importing the journal's writer
and the agent's launcher takes time.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.journal.layout import META_BYTES, OPEN_BYTES, Kind, Shape, Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.portability import host_name
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.attribute_values import NAME_BYTES
from otel_mlperf.recorder.core.faults import count_in, log, say, warn_once
from otel_mlperf.recorder.core.held_contexts import hold_contexts
from otel_mlperf.recorder.core.scrub import clean
from otel_mlperf.recorder.instruments.garbage_collection import watch_garbage
from otel_mlperf.recorder.lifecycle.agent_launch import AgentWatch, agent_environ
from otel_mlperf.recorder.lifecycle.clocks import start_clocks
from otel_mlperf.recorder.lifecycle.process_use import ProcessUse, store_import_time
from otel_mlperf.recorder.lifecycle.recorder import Recorder, make_recorder, watch_forks
from otel_mlperf.recorder.lifecycle.run import Run
from otel_mlperf.recorder.lifecycle.run_folder import (
    count_restart,
    discard_start,
    prepare_folder,
    warn_of_others,
)
from otel_mlperf.recorder.lifecycle.run_identity import (
    is_identity_given,
    is_interactive,
    parse_resource,
    take_identity,
)
from otel_mlperf.recorder.lifecycle.stack_choice import StackChoice
from otel_mlperf.recorder.lifecycle.warning_watch import WarningWatch
from otel_mlperf.recorder.sections.section_context import PARENTS
from otel_mlperf.run_files.run_file import read_key
from otel_mlperf.sensors.gpus.visible_devices import VARIABLES
from otel_mlperf.settings.run_settings import write_settings
from otel_mlperf.upper_parts import upper

if TYPE_CHECKING:
    from otel_mlperf.recorder.sections.section import Section
    from otel_mlperf.settings.config import Config

_SCRATCH_ROWS = 1 << 11
_CALLS = 100
_ROUNDS = 5
_MAX_DEVICES_TEXT = 1500
"""Maximum total size of the variables, enough for the UUIDs of 36 devices."""
_starts: dict[str, int] = {}


def begin(name: str, config: Config, params: dict[str, Any], tags: list[str], step: int) -> Run:
    """Start a run: create the run's folder, journal and section, and start the agent.

    ``step`` is the number of the first training step.

    Raises:
        ConfigError: the run folder cannot be created.
        JournalError: there is no room for the journal, or the working directory has been removed.
    """
    is_given = is_identity_given()
    meta = _describe(name, config, params, tags)
    try:
        recorder = make_recorder(meta, config)
    except BaseException:
        discard_start(meta.run_folder, f"{meta.rank}-{meta.restart}")
        raise
    recorder.shows_summary = not is_given and not meta.rank and not meta.local_rank
    # Opened before anything else may record, because it is the parent of all later sections.
    section = _open_run(recorder)
    recorder.stepping.set_next_number(step)
    with contextlib.suppress(OSError):  # ``doctor --recover`` then uses its caller's settings
        write_settings(meta.run_folder, agent_environ(config, meta.run_folder))
    watch = AgentWatch(recorder.journal, meta, config)
    warnings = WarningWatch(recorder)
    recorder.stepping.now_and_then += [watch.look, lambda _: _attend(recorder), warnings.look]
    run = Run(name, recorder, section, watch)
    if config.joins_provider and config.agent != "none":
        _join_provider(run)
    if config.print_steps and meta.rank == 0:
        from otel_mlperf.recorder.lifecycle.printed_steps import PrintedSteps

        PrintedSteps(recorder, config.print_steps)
    watch_forks()
    count_in(recorder.journal)
    recording.activate(recorder)
    run.hook_in()
    hold_contexts(recorder)
    if config.reads("process"):
        _watch_process(run, recorder)
    if config.reads("gc"):
        watch_garbage(recorder, recorder.cells)
    if config.reads("stacks"):
        _watch_stacks(recorder, at_once=config.readings != "basic")
    if config.console and recorder.shows_summary:
        say(f"recording {name} into {meta.run_folder}")
    watch.start()
    return run


def _join_provider(run: Run) -> None:
    """Pass the run's sections to the program's provider.

    Must run before the agent starts: otherwise the agent would find no socket, and assume that this
    process has ended.
    """
    try:
        join = upper("join")
    except ImportError as error:
        raise_foreign(error)
        warn_once("provider='join' requires the OpenTelemetry SDK (%s): sections are stored in the "
                  "run folder only; pip install opentelemetry-sdk", error)  # fmt: skip
    else:
        join(run)


def _watch_process(run: Run, recorder: Recorder) -> None:
    use = ProcessUse(recorder.cells)
    if not is_interactive():  # in an interactive session, the time before was idle
        store_import_time(recorder.cells, recorder.meta.monotonic_ns)
    recorder.stepping.now_and_then.append(use.look)
    recorder.stepping.peaks.append(use.peaks)
    run.before_end.append(use.finish)


def _watch_stacks(recorder: Recorder, *, at_once: bool) -> None:
    """Sample stacks: now if ``at_once``, else only if sections cover too little of the steps."""

    # Starts the only thread of the recorder in the training process.
    def watch() -> None:
        from otel_mlperf.recorder.instruments.stack_samples import watch_stacks

        stepping, registry = recorder.stepping, recorder.registry
        watch_stacks(
            recorder,
            recorder.cells,
            lambda: bool(stepping.open),
            lambda: registry.phase == names.TRAIN,
            validated_ns=lambda: stepping.validated_ns if stepping.end_inferred is None else None,
            is_from_start=at_once,
        )

    if at_once:
        watch()
    else:
        recorder.stepping.now_and_then.append(StackChoice(recorder, watch).look)


def _describe(name: str, config: Config, params: dict[str, Any], tags: list[str]) -> JournalMeta:
    who = take_identity(config.run_id, _starts)
    if who.warning:
        log.warning("%s", who.warning)
    facts = {"params": params, "tags": [str(tag) for tag in tags], "world_size": who.world_size}
    folder = prepare_folder(config.dir, who.run_id, name, facts)
    if who.rank == 0:
        warn_of_others(folder)
    resource = parse_resource(config.resource)
    service = (
        clean(config.service_name, NAME_BYTES)
        or clean(str(resource.pop(names.SERVICE_NAME, "")), NAME_BYTES)
        or name
    )
    unix_ns, monotonic_ns = start_clocks()
    meta = JournalMeta(
        run_id=who.run_id,
        run_name=name,
        run_folder=folder,
        run_key=read_key(folder),
        service=service,
        host=host_name(),
        pid=os.getpid(),
        thread=threading.get_native_id(),
        rank=who.rank,
        local_rank=who.local_rank,
        world_size=who.world_size,
        restart=count_restart(folder, who.rank, who.restart),
        run_span=int.from_bytes(os.urandom(8)) | 1,
        monotonic_ns=monotonic_ns,
        unix_ns=unix_ns,
        cost_ns=measure_cost(config),
        resource=resource,
        visible=_visible_devices(),
    )
    return _within_room(meta)


def _within_room(meta: JournalMeta) -> JournalMeta:
    """Return the metadata, dropping the largest resource attributes until it fits its room."""
    by_size = sorted(meta.resource, key=lambda name: len(name) + len(str(meta.resource[name])))
    dropped = []
    while by_size and len(msgspec.msgpack.encode(meta)) > META_BYTES:
        dropped.append(by_size.pop())
        meta = msgspec.structs.replace(
            meta, resource={name: meta.resource[name] for name in by_size}
        )
    if dropped:
        log.warning("OTEL_RESOURCE_ATTRIBUTES is too long: %d of %d attributes are ignored "
            "(%.200s)",
                    len(dropped), len(dropped) + len(by_size), ", ".join(dropped))  # fmt: skip
    return meta


def _visible_devices() -> dict[str, str]:
    visible = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    # All or none: a part would be wrong, and the journal's room for metadata is limited.
    return visible if sum(map(len, visible.values())) <= _MAX_DEVICES_TEXT else {}


def _open_run(recorder: Recorder) -> Section:
    track = recorder.tracks.current()
    number = recorder.registry.register(names.SPAN_RUN, names.RUN, "")
    section, sid, now = recorder.sections.make(number), recorder.meta.run_span, time.monotonic_ns()
    recorder.journal.put(now, 0, sid, 0, 0, track, number, Kind.BEGIN, Word.LOST_FRAME)
    recorder.sections.open(section, sid, PARENTS.pack(0, sid, track), track, now)
    recorder.sections.make_current(section)
    recorder.parents.outer.append(section)
    return section


def _attend(recorder: Recorder) -> None:
    """Write deferred values, complete deferred exits, and update the state that imports change."""
    recorder.values.publish()
    recorder.sections.finish_rest(time.monotonic_ns())
    recorder.sections.binding.watch_asyncio()
    recording.refresh()


def measure_cost(config: Config) -> int:
    """Return the time in ns to open and close a section on this machine, the best of five rounds.

    The time is measured in scratch memory; the reported overhead is derived from it.
    """
    meta: Any = SimpleNamespace(run_span=1, is_child=False, run_id="", restart=0)
    recorder = Recorder(_scratch_journal(), meta, config)
    make, best = recorder.sections.make, 1 << 62
    with make(1):
        for _ in range(_ROUNDS):
            began = time.monotonic_ns()
            for _ in range(_CALLS):
                with make(1):
                    pass
            best = min(best, time.monotonic_ns() - began)
    return best // _CALLS


def _scratch_journal() -> Any:
    """Return a substitute for a journal, to which sections can be written to measure the time."""
    shape = Shape.of_rows(_SCRATCH_ROWS)
    buffer = mmap.mmap(-1, shape.size)
    table = range(shape.table_at, shape.table_at + shape.open * OPEN_BYTES, OPEN_BYTES)
    return SimpleNamespace(
        shape=shape,
        buffer=buffer,
        words=memoryview(buffer).cast("Q"),
        free=list(table),
        lease=SimpleNamespace(take=itertools.count(1).__next__, end=1 << 62),
        entry=lambda content: 1,
    )
