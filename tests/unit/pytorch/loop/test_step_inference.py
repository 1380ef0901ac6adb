"""Steps and validations are inferred from what torch exposes, as a person would define them."""

from __future__ import annotations

from itertools import count

import pytest

from otel_mlperf.pytorch.loop.step_inference import Loop


class Written:
    """Steps as words, in order; each step with its samples."""

    def __init__(self):
        self.words, self.samples, self.steps_ns, self.epochs = [], [], [], []
        self._whole_ns = self._samples = None
        self.now_ns = 0

    def begin(self, at_ns, epoch):
        self.steps_ns.append([at_ns])
        self.epochs.append(epoch)
        self.words.append("begin")
        self._whole_ns = self._samples = None

    def complete(self, at_ns):
        self._whole_ns = at_ns

    def count(self, content):
        self._samples = content.samples

    def end(self, at_ns):
        assert self._whole_ns is not None, "a step without an update"
        self.steps_ns[-1].append(at_ns)
        self.words.append("end" if at_ns == self.now_ns else "end there")
        self.samples.append(self._samples)

    def cancel(self):
        self.steps_ns.pop()
        self.epochs.pop()
        self.words.append("cancel")

    def go_on_from(self, number):
        self.words.append(f"from {number}")

    def begin_validation(self, at_ns):
        assert at_ns
        self.words.append("validate")

    def end_validation(self, at_ns):
        assert at_ns
        self.words.append("over")

    def cancel_validation(self):
        self.words.append("none")


class Module:
    """What a loop needs to know of one, and of its parameter."""

    requires_grad = True

    def __init__(self):
        self.training = True

    def children(self):
        return iter(())

    def parameters(self):
        return iter((self,))


class Thing:
    """An iterator of a loader, or an optimizer."""


class Played:
    """A loop that moments were played to, each of them a character.

    ``b`` a batch of four samples, ``q`` one that the program lets go of at once, ``d`` one of
    another loader, ``v`` one of a third that is asked without gradients; ``x``, ``y`` and ``w``:
    they are asked, and have no more. ``f`` and ``h`` forwards of two models, ``n`` and ``t`` the
    same without gradients, ``u`` one of a third that only evaluates, ``m`` the first one's with
    gradients in evaluation mode, ``k`` backward; 1 and 2 updates, ``c`` one of the first optimizer
    with a closure. ``s`` a checkpoint. ``e`` and ``r``: the first model is switched to evaluation
    and to training. ``*``: the first loader's loop is left, ``!`` by an exception; ``+``: it has a
    new iterator over the same data. ``g``: the program says itself what its steps are; ``(`` and
    ``)``: a framework does between; ``.``: the run ends.
    """

    def __init__(self, moments, *, optimizers=""):
        self.written, self.waits = Written(), []
        self._ticks = count(1)
        self.loop = Loop(self.written, clock=lambda: next(self._ticks))
        self._models = {"f": Module(), "h": Module(), "u": Module()}
        self._models["u"].training = False
        self._optimizers = {"1": Thing(), "2": Thing()}
        self._batches, self._data = [], {name: Thing() for name in "bdv"}
        self._sources = {"b": Thing(), "d": Thing(), "v": Thing()}
        for name in optimizers:
            self.loop.optimizer_made(self._optimizers[name])
        for moment in moments:
            self._play(moment)

    def _play(self, moment):
        self.loop.step.now_ns = self.written.now_ns = next(self._ticks)
        self._tell(moment)
        if moment not in "er*+!g().":
            self.loop.over(next(self._ticks))

    def _tell(self, moment):
        loop, model = self.loop, self._models["f"]
        plain = {
            "k": loop.backward_begins, "s": loop.break_off, "g": loop.give_up, "(": loop.hold,
            ")": loop.release, ".": loop.finish, "!": loop.failed,
            "f": lambda: loop.forward_begins(model, records=True),
            "h": lambda: loop.forward_begins(self._models["h"], records=True),
            "m": lambda: self._evaluate(model, records=True),
            "n": lambda: self._evaluate(model, records=False),
            "t": lambda: self._evaluate(self._models["h"], records=False),
            "u": lambda: self._evaluate(self._models["u"], records=False),
            "e": lambda: setattr(model, "training", False),
            "r": lambda: setattr(model, "training", True),
            "*": lambda: self._sources.pop("b"),
            "+": lambda: self._sources.update(b=Thing()),
        }  # fmt: skip
        if moment in plain:
            plain[moment]()
        elif moment in "bqdv":
            name = "b" if moment == "q" else moment
            self._ask(name)
            self._batches.append(Thing())
            loop.batch_received(self._sources[name], 4, self._batches[-1])
            if moment == "q":
                self._batches.pop()
        elif moment in "xyw":
            name = {"x": "b", "y": "d", "w": "v"}[moment]
            self._ask(name)
            self.waits.append(loop.loader_ran_out(self._sources[name]))
        else:
            self._update(moment)

    def _ask(self, name):
        if self.loop.step.may_have_skipped:
            self.loop.step.skip_batches()
        self.loop.batch_requested(self._sources[name], self._data[name], records=name != "v")

    def _evaluate(self, module, *, records):
        before, module.training = module.training, module.training and not records
        self.loop.forward_begins(module, records=records)
        module.training = before

    def _update(self, moment):
        optimizer = self._optimizers["1" if moment == "c" else moment]
        self.loop.update_begins(optimizer)
        if moment == "c":
            self.loop.depth += 1
            self._play("f")
            self._play("k")
            self.loop.depth -= 1
        self.loop.updated(optimizer)


def steps_of(moments, **more):
    return " ".join(Played(moments, **more).written.words)


def samples_of(moments, **more):
    return Played(moments, **more).written.samples


# -- one loader ---------------------------------------------------------------------------------


def test_each_batch_with_an_update_is_a_step():
    """A step ends where the next batch is asked for; the one opened at the end is cancelled."""
    assert steps_of("bfk1" * 2 + "x") == "begin end begin end begin cancel"
    assert samples_of("bfk1" * 2 + "x") == [4, 4]
    assert Played("bfk1" * 2 + "x").waits == [False]


def test_accumulated_batches_are_one_step():
    """Batches without an update go on with the step."""
    assert steps_of("bfkbfkbfk1b") == "begin end begin"
    assert samples_of("bfkbfkbfk1b") == [12]


def test_gradients_that_an_epoch_leaves_over_belong_to_the_next_update():
    """What was accumulated when the loader ran out is part of the step that uses it."""
    assert steps_of("bfkbfk1bfkx+bfk1bfkbfk1b") == "begin end begin end begin end begin"
    assert samples_of("bfkbfk1bfkx+bfk1bfkbfk1b") == [8, 8, 8]


def test_two_optimizers_in_one_batch_are_one_step():
    """Several updates of different optimizers do not cut a step, known before or not."""
    for optimizers in ("", "12"):
        played = Played("bhkfhk1hk2" * 2 + "x", optimizers=optimizers)
        assert played.written.words[-4:] == ["begin", "end", "begin", "cancel"]
    assert steps_of("bhkfhk1hk2" * 2 + "x", optimizers="12") == "begin end begin end begin cancel"


def test_several_updates_of_one_batch_are_steps():
    """Work after an update that waits for no other optimizer is the next step's."""
    assert steps_of("bfk1fk1b") == "begin end begin end begin"
    assert steps_of("b11") == "begin end begin"


def test_loop_that_is_left_ends_its_step_at_that_time():
    """After ``break`` the step does not go on until somebody else asks for something."""
    assert steps_of("bfk1bfk1*+b") == "begin end begin end there begin"
    assert steps_of("bfk1bfk1*.") == "begin end begin end there"


def test_gradients_of_a_loop_that_failed_are_no_other_steps():
    """A loop that an exception has left before its update leaves nothing to the next one."""
    assert steps_of("bfk1bf!*+bfk1b") == "begin end begin cancel begin end begin"


def test_batch_that_was_only_looked_at_is_no_step():
    """A batch taken for its shape, before there is an optimizer, begins nothing."""
    played = Played("b*")
    played.loop.optimizer_made(Thing())
    assert played.written.words == ["begin", "cancel"]
    assert steps_of("b*+bfk1b") == "begin cancel begin end begin"


# -- one batch ahead ----------------------------------------------------------------------------


def test_loader_that_is_asked_ahead_loses_no_step():
    """The loader runs out before the last batch trains; that wait and that step are true."""
    played = Played("bbfk1bfk1xfk1+bbfk1.")
    assert " ".join(played.written.words) == ("begin end begin end begin end there begin end there")
    assert played.waits == [True]


def test_batch_asked_ahead_is_of_the_next_step():
    """The first step of an epoch has the samples of one batch, and so has its last."""
    assert samples_of("bbfk1bfk1bfk1xfk1+bbfk1.") == [4, 4, 4, 4, 4]


def test_batches_asked_ahead_are_told_from_accumulated_ones():
    """With one batch ahead and two for an update, five are asked before the second update."""
    assert samples_of("bbbfkfk1bbfkfk1bxfkfk1+b") == [8, 8, 8]
    assert samples_of("bbfkfk1bbfkfk1x") == [8, 8]
    assert samples_of("bfkbfk1bfkbfk1x") == [8, 8]


def test_two_optimizers_with_a_batch_ahead():
    """Each has a backward pass of its own."""
    assert samples_of("bbhk1hk2bhk1hk2xhk1hk2+b", optimizers="12") == [4, 4, 4]


def test_batches_that_are_trained_on_together_are_not_ahead():
    """Two batches for one backward pass: from the second step on it is plain, and none is lost."""
    assert samples_of("bbfk1bbfk1bbfk1x") == [4, 12, 8]


def test_single_batch_that_is_the_last_one():
    """A loader with one batch runs out before anything was computed."""
    assert steps_of("bxfk1+bxfk1.") == "begin end there begin end there"


def test_batches_that_are_skipped_are_of_no_step():
    """A resumed program lets go of them: their waits are outside, the first step is like others."""
    assert steps_of("qqqbfk1bfk1x") == " ".join(["begin cancel"] * 3 + ["begin end"] * 2) + (
        " begin cancel"
    )
    assert samples_of("qqqbfk1bfk1x") == [4, 4]
    assert samples_of("qqqbbfk1bfk1xfk1+b") == [4, 4, 4]


def test_batches_that_are_kept_are_the_step_s():
    """However many are asked for before the first forward."""
    assert steps_of("bbbbfkfkfkfk1x") == "begin end begin cancel"


# -- no loader ----------------------------------------------------------------------------------


def test_loop_without_a_loader_begins_with_its_first_forward():
    """The first step is whole, and so is the last."""
    assert steps_of("fk1fk1fk1.") == "begin end begin end begin end there"
    assert steps_of("fkfk1fkfk1.") == "begin end begin end there"


def test_loop_that_only_updates():
    """Where neither forward nor backward is seen, updates count, from the first to the last."""
    assert steps_of("111.") == "begin end begin end begin end there"


def test_closures_are_inside_their_update():
    """The step begins with the update, and nothing begins or ends inside."""
    assert steps_of("ccc.") == "begin end begin end begin end there"
    assert steps_of("bcbcx") == "begin end begin end begin cancel"


def test_loop_without_a_loader_and_two_optimizers():
    """One step a turn: work after the first update waits for the other's."""
    assert steps_of("fk1hk2" * 3 + ".", optimizers="12") == "begin end begin end begin end there"


def test_optimizer_that_has_its_turn_now_and_then_adds_no_step():
    """A delayed one, as the actor's of TD3: each update of the other is a step, his is in one."""
    for first in ("fk1", "fk1hk2"):
        delayed = first + "fk1hk2fk1" * 3 + "."
        assert steps_of(delayed, optimizers="12").count("end") == delayed.count("1")
    assert steps_of("bfk1" + "bfk1hk2bfk1" * 3 + "x").count("end") == 7
    assert steps_of("bfk1" + "bfk1hk2bfk1" * 3 + "x", optimizers="12").count("end") == 7


def test_step_begins_with_the_work_of_the_one_that_leads():
    """Once both have had their turns, what is computed for an update is in its step."""
    played = Played("fk1hk2fk1", optimizers="12")
    before = len(played.written.words)
    for moment in "fk1hk2fk1":
        played._play(moment)
        played.written.words.append(moment)
    assert " ".join(played.written.words[before:]) == "end begin f k 1 h k 2 end begin f k 1"


def test_turns_are_told_by_what_was_updated_before():
    """One model may be called first for both, as the judge of a GAN."""
    assert steps_of("fk1fk2" * 3 + ".", optimizers="12").count("end") == 3
    assert steps_of("bfk1fk2" * 3 + "x", optimizers="12").count("end") == 3


@pytest.mark.parametrize("optimizers", ["", "12"])
@pytest.mark.parametrize("alone", ["fk1", "fk2"])
def test_batch_with_one_turn_only_teaches_no_order(alone, optimizers):
    """What follows an update across two batches says nothing of what follows it within one."""
    batches = ["fk1fk2", alone, "fk1fk2", alone, alone, "fk1fk2", "fk1fk2"]
    for played in (batches, batches[1:]):
        words = steps_of("b" + "b".join(played) + "x", optimizers=optimizers)
        assert words.count("end") == len(played)


def test_optimizer_that_is_not_used_yet_keeps_the_count():
    """An optimizer that never has its turn costs no step."""
    assert steps_of("fk1" * 3 + ".", optimizers="12").count("end") == 3


def test_loops_one_after_the_other_have_steps_of_their_own():
    """Another model with another optimizer begins anew."""
    assert steps_of("fk1fk1" + "hk2hk2.").count("end") == 4


def test_loops_whose_optimizers_are_all_made_first_lose_no_step_between_them():
    """Nor where the first one goes on afterwards: an optimizer that was long alone still is."""
    assert steps_of("fk1" * 5 + "hk2" * 4 + ".", optimizers="12").count("end") == 9
    assert steps_of(("fk1" * 5 + "hk2" * 4) * 2 + ".", optimizers="12").count("end") == 18


def test_last_batch_of_another_loop_is_one_step():
    """The loader that it begins with may have no more before anything is computed."""
    assert steps_of("fk1" * 3 + "b", optimizers="1").count("begin") == 4
    played = Played("fk1" * 3, optimizers="12")
    for moment in "bxhk2.":
        played._play(moment)
    assert played.written.words.count("end") + played.written.words.count("end there") == 4
    assert "cancel" not in played.written.words


def test_model_that_has_played_before_it_learns_has_its_turn():
    """However late its first turn comes: it belongs to the other's step."""
    late = "fk1" * 5 + "fk1hk2fk1" * 2
    assert steps_of("t" + late + ".", optimizers="12").count("end") == late.count("1")


def test_model_that_is_tried_out_is_no_step():
    """A forward before the loader is asked, for shapes or to compile, is forgotten."""
    assert steps_of("fbfk1b") == "begin cancel begin end begin"


def test_forwards_that_no_update_follows_are_given_up():
    """A program that never updates holds no step open for ever, and is asked no more."""
    assert steps_of("f" * 10_002 + "fkb") == "begin cancel"
    assert steps_of("f" * 10_002 + "fk1fk1.").endswith("begin end begin end there")


# -- validations --------------------------------------------------------------------------------


def test_validation_by_a_loader_is_outside_steps():
    """A loader read without gradients ends the step; the next batch to learn from ends it."""
    assert steps_of("bfk1vnvnwbfk1x+b") == "begin end validate over begin end begin cancel begin"


def test_validation_before_the_next_forward_is_outside_steps():
    """Forwards without gradients after an update, with no loader at all."""
    assert steps_of("fk1nnsfk1.") == "begin end validate over begin end there"
    assert steps_of("ennrsfk1.", optimizers="1") == "validate over begin end there"


def test_experience_is_collected_outside_steps_and_is_no_validation():
    """A model in training mode that is asked before it has ever learned, with no loader."""
    assert steps_of("nn" + "fk1fk1nn" * 2 + ".", optimizers="1") == (
        "begin end begin end begin end begin end"
    )
    assert steps_of("nfk1enrnnfk1.") == "begin end validate over begin end there"


def test_validation_by_a_loader_needs_no_evaluation_mode():
    """Its batches say what it is."""
    assert steps_of("bfk1vnvnwnbfk1x") == "begin end validate over begin end begin cancel"


def test_validation_of_a_model_in_evaluation_mode():
    """Its loader may be asked while gradients are recorded, as Hugging Face Trainer does."""
    assert steps_of("bfk1edmdmyrbfk1x") == "begin end validate over begin end begin cancel"
    assert steps_of("bfk1edndnyrbfk1x") == "begin end validate over begin end begin cancel"


def test_mode_that_is_switched_back_after_the_batch():
    """The loader that was trained on is for training, whatever mode the model is in."""
    assert steps_of("bfk1ednybrfk1x") == "begin end validate over begin end begin cancel"


def test_validation_on_the_training_data():
    """Known by its forwards: the step that its loader began is forgotten."""
    played = Played("bfk1x*+e")
    for moment in "bnbnbnx*+rbfk1b":
        played._play(moment)
    assert " ".join(played.written.words) == (
        "begin end begin cancel begin validate over cancel begin end begin"
    )


def test_validation_inside_a_step():
    """One between a step's batch and its forward interrupts it."""
    assert steps_of("bfk1benwrfk1b".replace("w", "")) == ("begin end begin validate over end begin")


def test_validation_with_gradients_is_outside_time():
    """A loader that runs out without a backward pass takes its step with it."""
    assert steps_of("bfk1xdfdfdfy+bfk1b") == "begin end begin cancel begin cancel begin end begin"


def test_validation_before_any_training():
    """Nothing is known of the model: the first batch tells."""
    assert steps_of("dndndny+bfk1b", optimizers="1") == "begin validate over cancel begin end begin"


def test_evaluation_where_nothing_is_trained_is_no_validation():
    """Without optimizer and gradients there is nothing to validate."""
    assert steps_of("vnvnw") == ""


def test_teacher_is_part_of_the_step():
    """Forwards of a model that does not learn, inside a step, are its own."""
    assert steps_of("btfk1btfk1btfk1x") == "begin end begin end begin end begin cancel"
    assert steps_of("btfkbtfk1btfkbtfk1x") == "begin end begin end begin cancel"


def test_teacher_of_a_loop_without_a_loader_begins_its_steps():
    """Once two turns have shown that it is one; it is no validation in any of them."""
    words = steps_of("ufk1" * 5 + ".", optimizers="1").split()
    assert (words.count("begin"), words.count("over")) == (5, 0)
    played = Played("ufk1" * 3, optimizers="1")
    before = len(played.written.words)
    for moment in "ufk1":
        played._play(moment)
        played.written.words.append(moment)
    assert " ".join(played.written.words[before:]) == "end begin u f k 1"


def test_copy_that_is_validated_now_and_then_is_no_teacher():
    """As an average of the model, without a loader; nor is the model itself before it learns."""
    assert steps_of("fk1" * 3 + "ufk1fk1uu." + "ufk1", optimizers="1").count("over") == 2 + 1
    assert steps_of("enrfk1fk1", optimizers="1").split()[:3] == ["validate", "over", "begin"]


def test_update_by_hand_is_no_step_and_its_validation_is_one():
    """Without an optimizer's update nothing is a step; what is predicted afterwards is known."""
    assert steps_of("fkfknfkfkn.") == "begin validate over validate over"


def test_model_that_learns_in_evaluation_mode():
    """A backward pass says that a forward was trained on, whatever the mode."""
    assert steps_of("e" + "fk1" * 3 + ".", optimizers="1") == (
        "validate none begin end begin end begin end there"
    )


def test_checkpoint_ends_a_step_that_was_updated():
    """What is saved after an update, or after a validation, is in neither."""
    assert steps_of("bfk1sbfk1nsbfk1b") == ("begin end begin end validate over begin end begin")
    assert steps_of("bfsk1b") == "begin end begin"


# -- others have the word -----------------------------------------------------------------------


def test_program_that_speaks_for_itself_takes_over():
    """A step that is open when the program begins to say what its steps are is forgotten."""
    assert steps_of("bfk1bg") == "begin end begin cancel"
    assert steps_of("bfk1bfk1g") == "begin end begin end there"
    assert steps_of("g") == ""


def test_steps_that_a_framework_says_are_not_inferred():
    """What is open when its loop begins is taken back; later loops have steps again."""
    assert steps_of("b(bfk1bfk1nx1)bfk1b") == "begin cancel begin end begin"


def test_loops_of_frameworks_may_lie_in_each_other():
    """The outermost one's end counts."""
    assert steps_of("(b(bfk1)bfk1)bfk1b") == "begin end begin"


def test_run_that_ends_in_the_middle_of_a_step():
    """Only a step that was updated is ended: of the others the end itself decides."""
    assert steps_of("bfk1bfk.") == "begin end begin"


@pytest.mark.parametrize(
    ("moments", "epochs"),
    [
        ("bfk1bfk1x*+bfk1bfk1x", [0, 0, 1, 1]),  # two passes
        ("bfk1bfk1*+bfk1bfk1x", [0, 0, 1, 1]),  # the first one is left
        ("bfk1x*+bfk1x", [0, 1]),  # a single batch is all there is
        ("bfk1*+bfk1*+bfk1", [0, 0, 0]),  # a new iterator for each batch
        ("bdfk1bdfk1yx*+bdfk1", [0, 0, 1]),  # a second loader has passes of its own
        ("bfk1bfk1xenvnvnwr*+bfk1", [0, 0, 1]),  # a validation in between
        ("q*+bfk1bfk1x", [0, 0]),  # a batch was looked at before
        ("bfkx*+fk1bfk1", [0, 1]),  # gradients go on in the next pass
        ("fk1fk1", [None, None]),  # without a loader
    ],
)
def test_epochs_are_passes_over_the_loader(moments, epochs):
    """Each step is of the pass that it begins with."""
    assert Played(moments + ".").written.epochs == epochs


def test_resumed_loop_has_the_epochs_of_its_framework_alone():
    """How many passes there were before is not known."""
    played = Played("")
    played.loop.optimizer_restored(7)
    for moment in "bfk1bfk1x*+":
        played._play(moment)
    played.loop.epoch_begins(4)
    for moment in "bfk1bfk1x":
        played._play(moment)

    assert played.written.epochs == [None, None, 4, 4]
