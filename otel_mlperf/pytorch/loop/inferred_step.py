"""Inferred step: its batches and work, the optimizers that it consists of, and its end.

A step starts with a reported moment, and ends with another one or at a time in the past: when its
update was over, or when its loop was left. No object of the program is kept alive here.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf.pytorch.loop.epoch_count import EpochCount
from otel_mlperf.pytorch.loop.step_batches import Content, StepBatches
from otel_mlperf.pytorch.loop.validation import ValidationSink
from otel_mlperf.recorder.core.interrupts import raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable


class LoopSource:
    """The iterator that the open step began with, or the one before it."""

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self.reference: weakref.ref[Any] | None = None
        self.is_over = False
        """Whether it has no more batches."""

    def follow(self, source: Any) -> None:
        """Steps are fed by this iterator from now on."""
        self.is_over = False
        self.reference = weakref.ref(source, self._gone)

    def forget(self) -> None:
        """It feeds no steps."""
        self.reference, self.is_over = None, False

    @property
    def current(self) -> Any:
        """The iterator; None: there is none, or it is gone."""
        return self.reference() if self.reference is not None else None

    def __contains__(self, source: object) -> bool:
        return self.reference is not None and self.reference() is source

    def forget_gone(self) -> None:
        """A step begins: one that has gone feeds no more."""
        if self.reference is not None and self.reference() is None:
            self.reference = None

    @property
    def is_there(self) -> bool:
        """Whether the loop over it goes on, so that it will be asked again."""
        return not self.is_over and self.reference is not None and self.reference() is not None

    @raises_afterwards
    def _gone(self, gone: object) -> None:
        # By ``break``, or after its last batch. Any thread may say so.
        if gone is self.reference:
            self._left()


_NOBODY: Final = -1
_MOST_TURNS: Final = 256
_DELAY: Final = 2
"""Updates of one optimizer in a row for which another that takes turns with it may wait."""


class UpdateRound:
    """The updates of one step: each optimizer that takes turns with others has one in it.

    Whose turn it is tells the module that is called first after an update: it is remembered which
    optimizer's update followed it. So one that has its turn only now and then adds no step. What
    begins after one optimizer had many turns alone is another loop, if nobody knows better.
    """

    def __init__(self) -> None:
        self._unused: dict[int, weakref.ref[Any]] = {}
        """Optimizers that were made and have not updated anything yet."""
        self._due: set[int] = set()
        """Those whose updates a step waits for, as the one before has shown."""
        self.done: set[int] = set()
        """Those that have updated something in this step."""
        self.is_expected = False
        """Whether the program has optimizers at all."""
        self._followed: dict[tuple[int, int], int] = {}
        """Which optimizer updated after a module was called first, by that and the one before."""
        self._latest = self._first = _NOBODY
        """The optimizer that has updated last, and the module that was called first since."""
        self.awaits_first = True
        """Whether none was called since."""
        self._in_a_row = 0
        """How often it has."""
        self._follows_batch = False
        """Whether what is called first begins a batch: it tells of no turn within one."""
        self._is_another_loop = False
        """Whether what was called first since is taken for one: no turn that comes again."""

    def __len__(self) -> int:
        """Optimizers that have updated something in this step."""
        return len(self.done)

    def __contains__(self, optimizer: object) -> bool:
        return id(optimizer) in self.done

    @property
    def is_whole(self) -> bool:
        """Whether all have that are waited for, so that other work is another step's."""
        return bool(self.done) and self.done >= self._due

    def is_over_for(
        self,
        module: object,
        is_new: Callable[[Any], bool],
        *,
        records: bool = True,
        is_fed: bool = False,
    ) -> bool:
        """Whether what is computed now is no more of the step; asked once after each update.

        Args:
            module: what computes; None: a backward pass.
            is_new: says whether a module was never called before.
            records: whether with gradients.
            is_fed: whether the loop will ask a loader for a batch again, which ends the step.
        """
        if not self.awaits_first:
            return False
        self.awaits_first, self._first = False, (first := id(module) * 2 + records)
        self._is_another_loop = False
        following = self._followed.get((first, self._latest))
        if following is not None:
            return following in self.done
        if not self._unused:
            following = self._followed.get((first, _NOBODY))
        if following in self.done:
            return True
        if is_fed:
            return False
        if self._in_a_row > _DELAY and self.done:
            is_known = following is None and self._unused and (module is None or not is_new(module))
            self._is_another_loop = not is_known
        return self._is_another_loop or (following is None and self.is_whole)

    def made(self, optimizer: Any) -> None:
        """The program has a new optimizer."""
        self.is_expected, number = True, id(optimizer)
        forget = raises_afterwards(lambda _: self._unused.pop(number, None))
        self._unused[number] = weakref.ref(optimizer, forget)

    def begin(self) -> None:
        """A step begins."""
        self.done = set()
        self._follows_batch = self.awaits_first

    def add(self, optimizer: object) -> None:
        """One has updated its parameters."""
        self.is_expected, number = True, id(optimizer)
        if not self.done and number not in self._due:
            # Another loop, or the first: those that were never used may take turns with this one.
            self._due = {number, *self._unused}
        self._unused.pop(number, None)
        self.done.add(number)
        self._remember(number)

    def _remember(self, number: int) -> None:
        if not (self.awaits_first or self._follows_batch):
            if len(self._followed) > _MOST_TURNS:  # modules that are made anew each time
                self._followed.clear()
            if not self._is_another_loop:
                self._followed[self._first, self._latest] = number
            self._followed[self._first, _NOBODY] = number
        self._in_a_row = self._in_a_row + 1 if number == self._latest else 1
        self._latest, self.awaits_first, self._follows_batch = number, True, False

    def repeat(self) -> None:
        """One begins again before others had their turn: the step was whole without them."""
        self._due = {*self.done, *self._unused}


_PATIENCE: Final = 10_000
"""Forwards and backwards that a step waits for its update: all that is inside waits with it."""


class StepSink(ValidationSink, Protocol):
    """Where steps and validations are recorded."""

    def begin(self, at_ns: int, epoch: int | None) -> None:
        """Opens a step of this epoch as of then."""

    def complete(self, at_ns: int) -> None:
        """The open step was whole at that time: it may end there, and is taken back no more."""

    def count(self, content: Content) -> None:
        """The open step has had batches with that in them so far."""

    def end(self, at_ns: int) -> None:
        """Ends the open step as of then."""

    def cancel(self) -> None:
        """Forgets the open step: its number is not used up, its time is outside."""

    def go_on_from(self, number: int) -> None:
        """So many steps were done before: the next one's number, unless that is larger already."""


class InferredStep:
    """The steps of one loop, one after the other."""

    def __init__(self, sink: StepSink, clock: Callable[[], int]) -> None:
        self._sink, self._clock = sink, clock
        self.now_ns = 0
        """When the moment began that is being told of, or was over that was told of last."""
        self.round, self.batches = UpdateRound(), StepBatches()
        self.source = LoopSource(self._left)
        self.epochs = EpochCount()
        self.is_open = False
        self.is_after_backward = self.is_doubtful = self.has_failed = False
        """Of the open step: a backward came last; no forward came that trains; it has failed."""
        self.is_idle = False
        """Whether steps wait for an update that shows that there are any."""
        self.is_updating = False
        """Whether the moment that goes on has updated parameters."""
        self._whole_ns = self._left_ns = 0
        """When the step was updated last, when its loop was left."""
        self._waited = 0
        self.ended = 0
        """Steps that have ended so far."""

    @property
    def is_updated(self) -> bool:
        """Whether one is open and has had an update: it may end."""
        return self.is_open and bool(self.round.done)

    def go_on_from(self, number: int) -> None:
        """So many were done before, in a run that this one goes on with; ignored inside a step."""
        if not self.is_open:
            self.epochs.resume()
            self._sink.go_on_from(number)

    # -- its begin and end ----------------------------------------------------------------------

    def begin(self, *, is_first: bool = False) -> None:
        """A step begins now; ``is_first``: with a loader that gave nothing before."""
        self.source.forget_gone()
        self.is_open = True
        self._left_ns = self._waited = 0
        self.is_after_backward = self.is_doubtful = self.has_failed = False
        self.round.begin()
        self.batches.begin(is_first=is_first)
        self._sink.begin(self.now_ns, self.epochs.begin_step(self.source.current))

    def begin_with(self, source: Any) -> None:
        """A batch to train on is asked for: a step begins with it, unless one is open."""
        is_first = self.source.is_over or source not in self.source
        if not self.is_open and not self.is_idle:
            if is_first:
                self.source.follow(source)
            self.begin(is_first=is_first)
        elif self.source.is_over:  # gradients are left over from the epoch before
            self.source.follow(source)

    def end(self, at_ns: int = 0) -> None:
        """The step ends: then, else when its loop was left, else now."""
        self.is_open = False
        self.ended += 1
        self.epochs.end_step()
        content = self.batches.content
        self.batches.end(len(self.round))
        if self.batches.content != content:  # one lies ready for the next step
            self._sink.count(self.batches.content)
        self._sink.end(at_ns or min(self._left_ns or self.now_ns, self.now_ns))

    def end_before_batch(self) -> None:
        """It ends because a loader is asked again; with its update, if that had no more."""
        self.end(self._whole_ns if self.source.is_over and not self._left_ns else 0)

    def end_late(self) -> None:
        """It has ended already, when its loop was left or with its update."""
        self.end(self._left_ns or self._whole_ns)

    def cancel(self) -> None:
        """It was none."""
        self.is_open = False
        self.epochs.cancel_step()
        self._sink.cancel()

    def _left(self) -> None:
        """The loop over the loader was left. Any thread may say so."""
        if self.is_updated:
            self._left_ns = self._clock()
            self._sink.complete(self._left_ns)

    @property
    def is_abandoned(self) -> bool:
        """Whether the loop of an open step without an update was left, or never was one."""
        if self.source.reference is None:
            return True
        return not self.source.is_there and (self.has_failed or not self.batches.passes)

    # -- what belongs to it ---------------------------------------------------------------------

    def give(self, source: Any, samples: int | None, batch: object) -> None:
        """A batch is there, of so many samples if that is known."""
        if self.is_open:
            self.batches.give(samples, is_own=source in self.source, batch=batch)
            self._sink.count(self.batches.content)

    @property
    def may_have_skipped(self) -> bool:
        """Whether the program has let go of a batch before anything was computed."""
        return self.is_open and not self.round.done and self.batches.may_be_skipped

    def skip_batches(self) -> None:
        """Those that were given so far were passed over: they are of no step."""
        self.batches.skip()
        self.cancel()

    def is_read_whole(self, source: Any) -> bool:
        """Whether a loader has given several batches, all it has, and none was computed from.

        A single one may have been asked for ahead.
        """
        batches = self.batches
        return (
            self.is_open and source in self.source and batches.given > 1 and bool(batches.untouched)
        )

    def give_up_batches(self) -> None:
        """They were read before the loop that trains on them: their waits are of no step."""
        self.cancel()
        self.source.forget()
        self.batches.begin(is_first=True)

    def run_out(self, source: Any, *, is_validated: bool) -> bool:
        """A loader has no more batches; ``is_validated``: they were not for training.

        Returns:
            Whether that was a wait all the same: the last batch was given before, and is still to
            be trained on.
        """
        is_own = self.is_open and source in self.source
        if not is_own or is_validated:
            self.source.is_over |= is_own
            return False
        is_wait = self.batches.is_waiting and not self.is_doubtful
        if is_wait or self.batches.passes:
            self.source.is_over = True
            self.batches.release()
            self._sink.count(self.batches.content)
        else:
            self.cancel()
        return is_wait

    def compute(self) -> None:
        """Something is computed for its update."""
        self.batches.compute()
        self.is_doubtful = False

    def wait(self) -> None:
        """Its update has still not come."""
        self._waited += 1
        if self._waited > _PATIENCE:
            self.is_idle = True
            self.cancel()

    def update(self, optimizer: Any) -> None:
        """An optimizer has updated its parameters, in the moment that goes on."""
        self.round.add(optimizer)
        self.is_updating = self.is_open

    def over(self, at_ns: int) -> None:
        """A moment was over then."""
        self.now_ns = at_ns
        if self.is_updating:
            self.is_updating, self._whole_ns = False, at_ns
            self._sink.complete(at_ns)
