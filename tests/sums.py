"""A program of any shape under a clock that only its own work moves, and what is true of it.

What is true is written down as the work is done: whose own time it was. Nothing of it comes from
what was recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from by_hand import agent_folder

import otel_mlperf as om
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.store.run_folders import list_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.store.run_folders import RunFolder

EXCLUDED = ("checkpoint", "validate")
"""Sections that are of no step, also inside one."""


class Node(NamedTuple):
    """A piece of the program: what it is, its work before, between and after what is inside."""

    kind: str
    """``plain``, ``sum`` (aggregated), ``turns`` (an aggregated generator), ``thread`` (of no
    context), ``copied`` (a thread with its parent's), ``fork``, ``checkpoint``, ``validate``,
    ``step`` or ``look`` (the agent reads)."""
    name: str = ""
    work: int = 0
    inside: tuple[Node, ...] = ()
    fails: bool = False
    """Whether it ends by an exception, which stops at the next one around that does not."""


class _Frame(NamedTuple):
    scope: tuple[Any, ...]
    """Phase and n of a step; empty outside."""
    path: tuple[str, ...]
    """Names from below the step or run."""


class Own(Exception):
    """Raised by the program."""


class Truth:
    """Own nanoseconds of the process's main thread, by where they were spent."""

    def __init__(self) -> None:
        self.own: Counter[_Frame] = Counter()
        self.total: Counter[_Frame] = Counter()
        """From begin to end, of the calls that are not inside one in the same place."""
        self.sums: dict[str, list[int]] = {}
        """Durations of the aggregated calls by name, of all threads."""
        self.set_up = -1
        """Own time of the run before its first training step; -1: there was none."""
        self.is_flat = True
        """Whether no training step was inside a section."""
        self.life = 0


class Program:
    """Runs nodes under ``now``, which nothing else moves."""

    def __init__(self, agent: Agent | None) -> None:
        self.now = 10**12
        self.truth = Truth()
        self._agent = agent
        self._stack = [_Frame((), ())]
        self._is_main = True
        self._n: Counter[str] = Counter()
        self._phase = "train"

    def run(self, nodes: Sequence[Node]) -> None:
        """All of them, one after the other."""
        begin = self.now
        self._all(nodes)
        self.truth.life = self.now - begin

    def _all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            with contextlib.suppress(Own):
                self._one(node)

    def _one(self, node: Node) -> None:
        kind = getattr(self, f"_{node.kind}")
        kind(node)

    def _spend(self, work: int) -> None:
        self.now += work
        if self._is_main:
            self.truth.own[self._stack[-1]] += work

    def _body(self, node: Node) -> None:
        self._spend(node.work)
        for inner in node.inside:
            try:
                self._one(inner)
            except Own:
                if node.fails:
                    raise
            self._spend(node.work // 2)
        if node.fails:
            raise Own

    @contextlib.contextmanager
    def _frame(self, frame: _Frame) -> Iterator[None]:
        begin, is_outermost = self.now, frame not in self._stack
        self._stack.append(frame)
        try:
            yield
        finally:
            self._stack.pop()
            if is_outermost and self._is_main:
                self.truth.total[frame] += self.now - begin

    def _around(self, *, with_sums: bool) -> _Frame:
        """What is around: aggregated sections are no part of the path of others."""
        scope, path = self._stack[-1]
        return _Frame(scope, path if with_sums else _recorded(path))

    def _plain(self, node: Node) -> None:
        scope, path = self._around(with_sums=False)
        with om.span(node.name), self._frame(_Frame(scope, (*path, node.name))):
            self._body(node)

    def _sum(self, node: Node) -> None:
        begin, name = self.now, f"+{node.name}"
        scope, path = self._around(with_sums=True)
        first = len(path)
        while first and path[first - 1].startswith("+"):
            first -= 1
        if name in path[first:]:  # recursion adds up in one place
            path = path[: path.index(name, first)]
        try:
            with om.span(node.name, aggregate=True), self._frame(_Frame(scope, (*path, name))):
                self._body(node)
        finally:
            self.truth.sums.setdefault(node.name, []).append(self.now - begin)

    def _turns(self, node: Node) -> None:
        name = f"turns {node.name}"
        scope, path = self._around(with_sums=True)
        frame = _Frame(scope, (*path, f"+{name}"))

        @om.span(name, aggregate=True)
        def turns() -> Iterator[int]:
            for i in range(2):
                begin = self.now
                with self._frame(frame):
                    self._spend(node.work)
                self.truth.sums.setdefault(name, []).append(self.now - begin)
                yield i
            self.truth.sums[name].append(0)

        for _ in turns():
            self._body(node._replace(fails=False))

    def _excluded(self, name: str) -> _Frame:
        """One that is of no step: in a step it is below what is around the step."""
        scopes = [scope for scope, _ in self._stack]
        at = len(scopes)
        if scopes[-1]:
            at = scopes.index(scopes[-1])
        return _Frame((), (*_recorded(self._stack[at - 1].path), name))

    def _checkpoint(self, node: Node) -> None:
        with om.span("checkpoint"), self._frame(self._excluded("checkpoint")):
            self._body(node)

    def _validate(self, node: Node) -> None:
        before, self._phase = self._phase, "validate"
        try:
            with om.phase("validate"), self._frame(self._excluded("validate")):
                self._body(node)
        finally:
            self._phase = before

    def _step(self, node: Node) -> None:
        phase = self._phase
        if any(scope[:1] == (phase,) for scope, _ in self._stack):
            self._plain(node)
            return
        if phase == "train":
            self.truth.is_flat &= len(self._stack) == 1
            if self.truth.set_up < 0:
                self.truth.set_up = self.truth.own[_Frame((), ())]
        scope = (phase, self._n[phase])
        self._n[phase] += 1
        with om.step(), self._frame(_Frame(scope, ())):
            self._body(node)

    def _thread(self, node: Node) -> None:
        self._elsewhere(node, threading.Thread(target=self._all, args=(node.inside,)))

    def _copied(self, node: Node) -> None:
        run = copy_context().run
        self._elsewhere(node, threading.Thread(target=run, args=(self._all, node.inside)))

    def _elsewhere(self, node: Node, thread: threading.Thread) -> None:
        begin, was_main, stack = self.now, self._is_main, self._stack
        self._is_main, self._stack = False, [_Frame(("beside",), ())]
        thread.start()
        thread.join()
        self._is_main, self._stack = was_main, stack
        if was_main:
            self.truth.own[stack[-1]] += self.now - begin

    def _fork(self, node: Node) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                self._agent, self._is_main, self.truth = None, False, Truth()
                self._all(node.inside)
                os.write(writing, json.dumps(self.truth.sums).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as told:
            for name, calls in json.load(told).items():
                self.truth.sums.setdefault(name, []).extend(calls)
        os.waitpid(pid, 0)

    def _look(self, node: Node) -> None:
        if self._agent is not None:
            self._agent.tick()
            self._agent.mark()


def _recorded(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in path if not name.startswith("+"))


def record(folder: Path, nodes: Sequence[Node]) -> tuple[RunFolder, Truth]:
    """Runs a program, and an agent that reads it to its end."""
    program = Program(None)
    clock, time.monotonic_ns = time.monotonic_ns, lambda: program.now
    try:
        run = om.start("sums", dir=folder, agent="none", console=False, readings="none")
        recorder = run._recorder
        journals = recorder.journal.path
        tail = Tail(Path(journals).parent, {journals: recorder.journal.buffer})
        program._agent = agent = Agent(agent_folder(recorder.meta), tail, Options(policy=Policy()))
        program.run(nodes)
        om.stop()
    finally:
        time.monotonic_ns = clock
    agent.run()
    (found,) = list_runs(folder)
    return found, program.truth
