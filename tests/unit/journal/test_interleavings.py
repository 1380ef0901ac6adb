"""The journal keeps its promises in every order of writers, signals, readers and deaths."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from journal_model import ROWS, Twin, open_of

from otel_mlperf.journal.journal_folder import SHARED_MEMORY
from otel_mlperf.journal.journal_writer import Lease
from otel_mlperf.journal.layout import OPEN, ROW, Word

picks = st.integers(0, 1 << 30)


class Interrupted(dict[int, Lease]):
    """A lease's successor, before and after whose look-up a signal handler runs."""

    def __init__(self, handler) -> None:
        super().__init__()
        self._handler = handler

    def get(self, key, default=None):
        found = super().get(key, default)
        self._handle()
        return found

    def setdefault(self, key, default=None):
        self._handle()
        return super().setdefault(key, default)

    def _handle(self):
        handler, self._handler = self._handler, None
        if handler is not None:
            handler()


class Interleavings(RuleBasedStateMachine):
    """Any order of what writers, signal handlers, forks, readers and the kernel may do."""

    def __init__(self) -> None:
        super().__init__()
        place = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
        self.folder = tempfile.TemporaryDirectory(dir=place)
        self.span = itertools.count(1).__next__
        self.twins: list[Twin] = []
        self.fork()

    def teardown(self) -> None:
        try:
            for twin in self.twins:
                twin.check_end()
        finally:
            for twin in self.twins:
                twin.release()
            self.folder.cleanup()

    @property
    def twin(self) -> Twin:
        """The youngest process; the others only wait to be read."""
        return self.twins[-1]

    def alive(self) -> bool:
        return not self.twin.is_over

    # -- writing

    @precondition(alive)
    @rule(pick=picks)
    def draw(self, pick: int) -> None:
        """A thread draws a slot, under a lease that may be old, and is interrupted."""
        twin = self.twin
        twin.draw(self.span(), twin.leases[pick % len(twin.leases)])
        twin.leases = [*twin.leases[-7:], twin.writer.lease]

    @precondition(lambda self: self.alive() and self.twin.model.drawn)
    @rule(pick=picks)
    def store(self, pick: int) -> None:
        """It goes on and stores its row."""
        waiting = sorted(self.twin.model.drawn)
        self.twin.store(waiting[pick % len(waiting)])

    @precondition(alive)
    @rule(count=st.integers(1, ROWS))
    def write(self, count: int) -> None:
        """Rows by threads that nobody interrupts."""
        for _ in range(count):
            self.twin.write(self.span())

    @precondition(alive)
    @rule(frees=st.booleans())
    def write_interrupted(self, frees: bool) -> None:
        """A signal handler records while its thread looks for the next lease."""
        twin, lease = self.twin, self.twin.writer.lease
        span = self.span()

        def handler() -> None:
            if frees:
                twin.poll()
                twin.free()
            twin.write(self.span())

        if 0 in lease.next or twin.model.slot < lease.end:
            twin.write(span)
            return
        lease.next = Interrupted(handler)
        slot = lease.take()
        slot = twin.writer.renew(lease)
        assert slot == twin.model.draw(span, Word.LOST_RING_FULL)
        if slot:
            twin.store(slot)

    @precondition(alive)
    @rule(given=st.dictionaries(st.text(max_size=5), st.text(max_size=100), max_size=3))
    def payload(self, given: dict[str, str]) -> None:
        """Attributes, over as many rows as they take."""
        self.twin.payload(self.span(), {"a": given})

    @precondition(alive)
    @rule(name=st.text(max_size=100))
    def register(self, name: str) -> None:
        """A name, which the reader gets once."""
        content = ["section", name, "other", "train", {}]
        self.twin.names[self.twin.writer.entry(content)] = content

    # -- open sections

    @precondition(alive)
    @rule()
    def enter(self) -> None:
        """A section opens, in the table where it has room."""
        twin, span = self.twin, self.span()
        try:
            at = twin.writer.free.pop()
        except IndexError:
            return
        twin.enter(at, span)
        twin.model.open.add(span)

    @precondition(lambda self: self.alive() and self.twin.model.open)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        """A section ends: its row is published, and perhaps its entry is not cleared yet."""
        open_ = sorted(self.twin.model.open)
        span = open_[pick % len(open_)]
        self.twin.write(span)
        self.twin.model.open.remove(span)

    @precondition(lambda self: self.alive() and self.twin.table)
    @rule()
    def clear(self) -> None:
        """What has ended gives its entry back."""
        twin = self.twin
        for span in twin.table.keys() - twin.model.open:
            at = twin.table.pop(span)
            twin.writer.words[at >> 3] = 0
            twin.writer.free.append(at)

    # -- reading

    @rule(pick=picks)
    def poll(self, pick: int) -> None:
        """The reader looks at one of the journals."""
        twin = self.twins[pick % len(self.twins)]
        twin.poll()
        assert twin.reader.new_entries() == twin.names
        twin.names = {}

    @precondition(alive)
    @rule(after=st.integers(0, ROWS), count=st.integers(0, ROWS), closes=st.booleans())
    def poll_preempted(self, after: int, count: int, closes: bool) -> None:
        """The program goes on, and perhaps ends, in the middle of a look."""

        def meanwhile() -> None:
            self.write(count)
            if closes:
                self.twin.close()

        self.twin.preempted_poll(after, meanwhile)

    @rule(pick=picks)
    def free(self, pick: int) -> None:
        """What it read is durable."""
        self.twins[pick % len(self.twins)].free()

    @rule(pick=picks)
    def replace_reader(self, pick: int) -> None:
        """The reader is killed, and the next one goes on."""
        twin = self.twins[pick % len(self.twins)]
        twin.replace_reader()
        twin.names = {}

    # -- ends

    @precondition(alive)
    @rule(torn_row=st.integers(0, ROW.size - 1), torn_entry=st.integers(0, OPEN.size - 1))
    def kill(self, torn_row: int, torn_entry: int) -> None:
        """The process is killed while threads store a row and open a section."""
        twin = self.twin
        if twin.model.drawn:
            twin.store(max(twin.model.drawn), torn_row)
        if twin.writer.free:
            twin.enter(twin.writer.free.pop(), self.span(), torn_entry)
        twin.is_over = True

    @precondition(alive)
    @rule()
    def close(self) -> None:
        """The run ends in good order."""
        self.twin.close()

    @precondition(lambda self: len(self.twins) < 4)
    @rule()
    def fork(self) -> None:
        """A child begins a journal of its own; the one before is left as it is."""
        self.twins.append(Twin(Path(self.folder.name, f"{len(self.twins)}.journal")))

    # -- what always holds

    @invariant()
    def drops_are_counted(self) -> None:
        for twin in self.twins:
            for word in (Word.LOST_RING_FULL, Word.LOST_PAYLOADS):
                assert twin.reader.word(word) == twin.model.lost.get(word, 0)

    @invariant()
    def nothing_is_overwritten_before_it_was_freed(self) -> None:
        for twin in self.twins:
            ring = twin.reader.ring._ring["seq"]
            for slot in twin.model.stored:
                if slot >= twin.model.tail:
                    assert ring[slot & (ROWS - 1)] == slot

    @invariant()
    def every_item_is_read_or_unread(self) -> None:
        for twin in self.twins:
            model = twin.model
            read = {*model.taken, *model.fresh}
            assert len(read) == len(model.taken) + len(model.fresh)
            unread = {slot for slot in model.stored if slot not in read}
            assert all(slot >= model.next or slot in model.holes for slot in unread)

    @invariant()
    def open_sections_are_those_without_a_row(self) -> None:
        for twin in self.twins:
            found = twin.reader.open_sections()
            assert set(found["span"].tolist()) == twin.table.keys()
            assert twin.model.open <= twin.table.keys()
            for entry in found:
                assert entry.tolist() == open_of(int(entry["span"]))
            with_row = set(twin.model.stored.values())
            assert not twin.model.open & with_row

    @invariant()
    def the_end_is_seen_when_all_is_read(self) -> None:
        for twin in self.twins:
            if twin.reader.is_closed:
                assert not twin.model.unread


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=settings.default.max_examples * 3 // 2, stateful_step_count=60
)


@pytest.fixture
def twin(tmp_path):
    made = Twin(tmp_path / "a.journal")
    yield made
    made.check_end()
    made.release()


def test_end_is_not_seen_before_the_last_row(twin) -> None:
    """A row stored between the last look and the end is read before the journal counts as over."""
    slot = twin.draw(1, twin.writer.lease)
    for span in range(2, ROWS + 1):
        twin.write(span)
    twin.poll()
    twin.store(slot)
    twin.close()

    assert not twin.reader.is_closed
    twin.poll()
    assert twin.reader.is_closed


def test_new_reader_leaves_what_was_given_up(twin) -> None:
    """The place of a hole that was given up may be written again: nobody reads the old row."""
    slot = twin.draw(1, twin.writer.lease)
    for span in range(2, ROWS + 1):
        twin.write(span)
    twin.poll()
    twin.store(slot)
    twin.free()
    twin.replace_reader()

    assert slot not in twin.reader.ring.holes
    twin.poll()
