"""Tells the active run what the loop of ``tinyfit`` does, without importing ``tinyfit``."""

import functools

import otel_mlperf as om
from otel_mlperf.integrations import own_steps


class TinyFit:
    """The integration: blocks of the active run around the methods of ``Trainer``."""

    name = "tinyfit"
    module = "tinyfit.trainer"
    needs = ("Trainer.fit", "Trainer.validate", "Trainer.batches")

    def __init__(self):
        self._is_on = self._is_in_place = False
        self._trainer = None

    def switch_on(self, framework):
        self._is_on = True
        om.on_step_end(self._log)
        if not self._is_in_place:
            self._is_in_place = True
            self._put_around(framework.Trainer, "fit", own_steps)
            self._put_around(framework.Trainer, "validate", lambda: om.phase("validate"))
            self._put_around(framework.Trainer, "forward", lambda: om.span("forward"))
            self._put_around(framework.Trainer, "backward", lambda: om.span("backward"))
            self._put_around(framework.Trainer, "update", lambda: om.span("optimizer"))
            self._make_steps_of(framework.Trainer, "batches")

    def switch_off(self):
        self._is_on = False
        om.remove_callback(self._log)

    def _log(self, phase, number):
        if phase == "train" and self._trainer is not None:
            om.log(weight=self._trainer.weight)

    def _put_around(self, kind, name, block):
        method = getattr(kind, name)

        @functools.wraps(method)
        def call(trainer, *given, **named):
            if not self._is_on:
                return method(trainer, *given, **named)
            self._trainer = trainer
            with block():
                return method(trainer, *given, **named)

        setattr(kind, name, call)

    def _make_steps_of(self, kind, name):
        method = getattr(kind, name)

        @functools.wraps(method)
        def call(*given, **named):
            batches = method(*given, **named)
            return om.steps(batches) if self._is_on else batches

        setattr(kind, name, call)
