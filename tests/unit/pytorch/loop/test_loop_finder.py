"""Are steps told from batches and updates alone where a person would say they are?"""

from __future__ import annotations

from otel_mlperf.pytorch.loop.loop_finder import Loop


class Written:
    """Steps as words, in order."""

    def __init__(self):
        self.words = []

    def begin(self):
        self.words.append("begin")

    def end(self):
        self.words.append("end")

    def cancel(self):
        self.words.append("cancel")


def steps_of(moments):
    """Plays moments: ``b`` a batch to learn from, ``v`` another, ``x`` no more, 1 and 2 updates.

    ``g``: the program says itself what its steps are; ``(`` and ``)``: a framework does between.
    """
    written = Written()
    loop = Loop(written)
    for moment in moments:
        if moment in "bv":
            loop.batch_asked(moment == "b")
        elif moment == "g":
            loop.give_up()
        elif moment == "(":
            loop.hold()
        elif moment == ")":
            loop.release()
        elif moment == "x":
            loop.loader_ran_out()
        else:
            loop.updated(int(moment))
    return " ".join(written.words)


def test_each_batch_with_an_update_is_a_step():
    """A step ends where the next batch is asked for; the one opened at the end is cancelled."""
    assert steps_of("b1b1bx") == "begin end begin end begin cancel"


def test_accumulated_batches_are_one_step():
    """Batches without an update go on with the step."""
    assert steps_of("bbb1b") == "begin end begin"


def test_two_optimizers_in_one_batch_are_one_step():
    """Several updates of different optimizers do not cut a step."""
    assert steps_of("b12b12bx") == "begin end begin end begin cancel"


def test_validation_under_no_grad_is_outside_time():
    """A loader read without gradients ends the training step and opens none."""
    assert steps_of("b1vvvxb1bx") == "begin end begin end begin cancel"


def test_validation_with_gradients_is_outside_time():
    """A loader that runs out without an update takes its step with it."""
    assert steps_of("b1bbbxb1") == "begin end begin cancel begin"


def test_loop_without_a_loader_counts_updates():
    """Without batches a step goes from one update of the same optimizer to its next."""
    assert steps_of("111") == "begin end begin end begin"


def test_loop_without_a_loader_and_two_optimizers():
    """Without batches the optimizer that came first says where steps end."""
    assert steps_of("121212") == "begin end begin end begin"


def test_several_updates_of_one_batch_are_steps():
    """An optimizer that updates twice for one batch makes two steps of it."""
    assert steps_of("b11") == "begin end begin"


def test_batch_after_a_loop_without_loader_begins_anew():
    """A step that an update opened and nothing followed is forgotten when a loader is asked."""
    assert steps_of("11vx") == "begin end begin cancel"


def test_program_that_speaks_for_itself_takes_over():
    """A step that is open when the program begins to say what its steps are is forgotten."""
    assert steps_of("b1b1g") == "begin end begin cancel"
    assert steps_of("g") == ""


def test_steps_that_a_framework_says_are_not_inferred():
    """What is open when its loop begins is taken back; later loops have steps again."""
    assert steps_of("b(b1b1bx1)b1b") == "begin cancel begin end begin"


def test_loops_of_frameworks_may_lie_in_each_other():
    """The outermost one's end counts."""
    assert steps_of("(b(b1)b1)b1b") == "begin end begin"
