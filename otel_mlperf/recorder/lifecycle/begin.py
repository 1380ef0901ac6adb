"""What is set up when a run begins?

Loaded by ``start()``, not with the package: the journal's writer, the agent's launcher and what
they need cost time to import.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_folder import (
    fitting_rows,
    journal_folder,
    journal_name,
    make_private,
)
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.recorder.api import span as spans
from otel_mlperf.recorder.api.warnings import Told
from otel_mlperf.recorder.core.faults import count_with, log, say_once
from otel_mlperf.recorder.core.recorder import Recorder
from otel_mlperf.recorder.instruments.garbage_collection import watch_garbage
from otel_mlperf.recorder.lifecycle.agent_launch import AgentWatch
from otel_mlperf.recorder.lifecycle.fork import watch_forks
from otel_mlperf.recorder.lifecycle.program_name import parse_resource
from otel_mlperf.recorder.lifecycle.run import Run
from otel_mlperf.recorder.lifecycle.run_folder import count_restart, discard_start, prepare_folder
from otel_mlperf.recorder.lifecycle.run_identity import detect_identity
from otel_mlperf.recorder.lifecycle.section_cost import measure_cost
from otel_mlperf.recorder.sections.section import PARENTS
from otel_mlperf.sensors.gpus.visible_devices import VARIABLES

if TYPE_CHECKING:
    from otel_mlperf.config import Config
    from otel_mlperf.recorder.sections.section import Section

_MOST_DEVICES_TEXT = 1500
"""Characters: the UUIDs of 36 devices."""
_file_number = itertools.count(1).__next__
_starts: dict[str, int] = {}


def begin(name: str, config: Config, params: dict[str, Any], tags: list[str], step: int) -> Run:
    """Begins a run: folder, journal, its section, the agent.

    Raises:
        ConfigError: the run folder cannot be created.
        JournalError: there is no room for the journal.
    """
    meta = _describe(name, config, params, tags)
    try:
        recorder = make_recorder(meta, config)
    except BaseException:
        discard_start(meta.run_folder, f"{meta.rank}-{meta.restart}")
        raise
    section = _open_run(recorder)
    recorder.stepping.set_next_number(step)
    watch = AgentWatch(recorder.journal, meta, config)
    recorder.now_and_then += [watch.look, lambda _: _look_around(recorder), Told(recorder).look]
    run = Run(name, recorder, section, watch)
    watch_forks()
    count_with(lambda: recorder.journal.count(Word.INTERNAL_ERRORS))
    spans.activate(recorder)
    if config.provider == "install":
        from otel_mlperf.recorder.sections.otel_provider import install

        install()
    run.hook_in()
    if config.reads("gc"):
        watch_garbage(recorder)
    watch.start()
    return run


def _describe(name: str, config: Config, params: dict[str, Any], tags: list[str]) -> JournalMeta:
    who = detect_identity(config.run_id, _starts)
    if who.warning:
        log.warning("%s", who.warning)
    facts = {"params": params, "tags": [str(tag) for tag in tags], "world_size": who.world_size}
    folder = prepare_folder(config.dir, who.run_id, name, facts)
    resource = parse_resource(config.resource)
    service = config.service_name or str(resource.pop(names.SERVICE_NAME, "")) or name
    return JournalMeta(
        run_id=who.run_id,
        run_name=name,
        run_folder=folder,
        service=service,
        host=socket.gethostname(),
        pid=os.getpid(),
        rank=who.rank,
        local_rank=who.local_rank,
        world_size=who.world_size,
        restart=count_restart(folder, who.rank, who.restart),
        run_span=int.from_bytes(os.urandom(8)) | 1,
        monotonic_ns=time.monotonic_ns(),
        unix_ns=time.time_ns(),
        cost_ns=measure_cost(config),
        resource=resource,
        visible=_visible_devices(),
    )


def _visible_devices() -> dict[str, str]:
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    # A part would be wrong, and the journal has little room for metadata.
    return found if sum(map(len, found.values())) <= _MOST_DEVICES_TEXT else {}


def make_recorder(meta: JournalMeta, config: Config) -> Recorder:
    """A recorder with a journal of its own, in shared memory where there is room.

    Raises:
        JournalError: there is room nowhere.
    """
    file = journal_name(meta.rank, os.getpid(), _file_number())
    shared = journal_folder(meta.run_id, meta.run_folder)
    on_disk = journal_folder(meta.run_id, meta.run_folder, "")
    for folder in dict.fromkeys((shared, on_disk)):
        path = os.path.join(folder, file)
        try:
            make_private(folder)
            return Recorder(Journal(path, fitting_rows(folder, config.rows), meta), meta, config)
        except JournalError as error:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
            if folder == on_disk:
                raise
            say_once("%s; the journal goes to the run folder, where a slow disk can delay the "
                     "program", error)  # fmt: skip
    raise AssertionError  # the last folder returned or raised


def _open_run(recorder: Recorder) -> Section:
    track = recorder.tracks.current()
    number = recorder.registry.register(names.SPAN_RUN, names.RUN, "")
    section, sid, now = recorder.make(number), recorder.meta.run_span, time.monotonic_ns()
    recorder.journal.put(now, 0, sid, 0, 0, track, number, Kind.BEGIN, Word.LOST_FRAME)
    recorder.open(section, sid, PARENTS.pack(0, sid, track), track, now)
    recorder.make_current(section)
    recorder.outer.append(section)
    return section


def _look_around(recorder: Recorder) -> None:
    """Publishes late values, and notices what the program has imported since."""
    recorder.values.publish()
    recorder.binding.watch_asyncio()
    spans.watch_torch()
