"""What stands around the parts of the loops here: nothing, a stopwatch, or what records them?

``LOOP_MARKS`` says which. Without it each mark hands back what it was given, and each program is a
script that nobody has touched. With ``stopwatch`` it times itself and writes what it measured to
``LOOP_MARKS_FILE``; with ``api`` it speaks to otel_mlperf, with ``advised`` of its steps alone.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import time
from contextlib import contextmanager, nullcontext


class Untouched:
    """Nothing."""

    def run(self, step=0):
        """Around the whole training, which begins at that step."""
        return nullcontext()

    def steps(self, batches, accumulate=1):
        """Around each turn of a loop over batches, or each so many turns."""
        return batches

    def step(self):
        """Around one turn of any other loop."""
        return nullcontext()

    def section(self, name):
        """Around one part of it."""
        return nullcontext()

    def each_call(self, owner, function, name):
        """The same around a function that somebody else's loop calls; not in a validation."""

    def each_step(self, first, last):
        """Around a step of such a loop: from the call of a class's method to the end of one."""


class Recorded(Untouched):
    """The public calls, as the README shows them."""

    def __init__(self):
        import otel_mlperf

        self._api = otel_mlperf
        self.steps, self.step = otel_mlperf.steps, otel_mlperf.step

    def run(self, step=0):
        return self._api.start(step=step)

    def section(self, name):
        return self._api.phase(name) if name == "validate" else self._api.span(name)


class Advised(Untouched):
    """The one line that is advised where nobody can see the steps."""

    def step(self):
        import otel_mlperf

        return otel_mlperf.step()


class Stopwatch(Untouched):
    """Two looks at the clock, and what ran inside is told apart."""

    def __init__(self, path):
        self.steps_ns, self.parts = [], []
        self._inside_ns = [0]  # of each open part: what the parts inside it took
        self._step = None
        self._validates = False
        atexit.register(self._write, path)

    @contextmanager
    def section(self, name):
        self._inside_ns.append(0)
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            took_ns = time.perf_counter_ns() - began
            own_ns = took_ns - self._inside_ns.pop()
            self._inside_ns[-1] += took_ns
            self.parts.append((name, self._step, own_ns, took_ns))

    def each_call(self, owner, function, name):
        call = getattr(owner, function)

        @functools.wraps(call)
        def timed(*given, **named):
            if self._validates:
                return call(*given, **named)
            self._validates = name == "validate"
            try:
                with self.section(name):
                    return call(*given, **named)
            except StopIteration:
                self.parts.pop()  # there was no batch, so there was no wait for one
                raise
            finally:
                self._validates = False

        setattr(owner, function, timed)

    def each_step(self, first, last):
        begin = getattr(*first)

        @functools.wraps(begin)
        def begins(*given, **named):
            self._begin_step()
            return begin(*given, **named)

        setattr(*first, begins)
        end = getattr(*last)

        @functools.wraps(end)
        def ends(*given, **named):
            try:
                return end(*given, **named)
            finally:
                if self._step is not None:
                    self._end_step()

        setattr(*last, ends)

    @contextmanager
    def step(self):
        self._begin_step()
        try:
            yield
        finally:
            self._end_step()

    def steps(self, batches, accumulate=1):
        iterator, count = iter(batches), 0
        try:
            while True:
                if self._step is None:
                    self._begin_step()
                try:
                    with self.section("data.load"):
                        batch = next(iterator)
                except StopIteration:
                    self._forget_wait(is_first=count % accumulate == 0)
                    return
                yield batch
                count += 1
                if count % accumulate == 0:
                    self._end_step()
        finally:
            if self._step is not None:  # the loop was left, or its last step is shorter
                self._end_step()

    def _forget_wait(self, *, is_first):
        """There was no batch, so there was no wait for one, nor a step that began with it."""
        self.parts.pop()
        if is_first:
            self._step = None

    def _begin_step(self):
        self._step, self._began = len(self.steps_ns), time.perf_counter_ns()

    def _end_step(self):
        self.steps_ns.append(time.perf_counter_ns() - self._began)
        self._step = None

    def _write(self, path):
        with open(path, "w") as file:
            json.dump({"steps_ns": self.steps_ns, "parts": self.parts}, file)


def _marks():
    style = os.environ.get("LOOP_MARKS", "")
    if style == "stopwatch":
        return Stopwatch(os.environ["LOOP_MARKS_FILE"])
    return {"api": Recorded, "advised": Advised, "": Untouched}[style]()


_chosen = _marks()
run, steps, step, section = _chosen.run, _chosen.steps, _chosen.step, _chosen.section
each_call, each_step = _chosen.each_call, _chosen.each_step
