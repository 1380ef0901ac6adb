"""Names of phases, categories and the package's own spans."""

from __future__ import annotations

from typing import Final

# Phases: what a loop of steps is for.
TRAIN: Final = "train"
VALIDATE: Final = "validate"
PREDICT: Final = "predict"
PHASES: Final = (TRAIN, VALIDATE, "test", PREDICT)
PHASE_OF: Final = {
    "training": "train",
    "eval": "validate",
    "evaluate": "validate",
    "evaluation": "validate",
    "val": "validate",
    "valid": "validate",
    "validation": "validate",
    "testing": "test",
    "inference": "predict",
    "prediction": "predict",
}
"""The phase that is meant by other words for it."""

# Categories: what kind of work a section does.
DATA_LOADING: Final = "data_loading"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
TRANSFER: Final = "transfer"
OPTIMIZER: Final = "optimizer"
COMMUNICATION: Final = "communication"
CHECKPOINT: Final = "checkpoint"
KERNEL: Final = "kernel"
PROFILER: Final = "profiler"
OPERATOR: Final = "operator"
STEP: Final = "step"
REQUEST: Final = "request"
EPOCH: Final = "epoch"
PHASE: Final = "phase"
RUN: Final = "run"
DEVICE: Final = "device"
GARBAGE_COLLECTION: Final = "garbage_collection"
COMPILE: Final = "compile"
OTHER: Final = "other"

# Spans that the package itself makes.
SPAN_RUN: Final = "run"
SPAN_EPOCH: Final = "train.epoch"
SPAN_DATA: Final = "data.load"
SPAN_LOSS: Final = "loss"
SPAN_TRAINING_STEP: Final = "training_step"
"""Span that Lightning's program records in a step: the closure that it passes to its optimizer."""
SPAN_GRAPH_REPLAY: Final = "graph.replay"
"""A CUDA graph of a whole step: forward, backward and optimizer at once."""
SPAN_CHECKPOINT: Final = "checkpoint"
SPAN_CHECKPOINT_LOAD: Final = "checkpoint.load"
SPAN_MICRO_STEP: Final = "micro_step"
SPAN_SEGMENT: Final = "segment"
SPAN_PROFILER_START: Final = "profiler.start"
SPAN_PROFILER_EXPORT: Final = "profiler.export"
SPAN_COLLECTION: Final = "gc.collect"
SPAN_COMPILE: Final = "compile"
SPAN_DEVICE_LOST: Final = "device.lost"
SPAN_DEVICE_BACK: Final = "device.back"
DEVICE_LOST_ERROR: Final = "DeviceLost"
"""``error.type`` of a ``device.lost``; its message is the driver's."""
SPAN_FINDING: Final = "finding"
SPAN_DOCTOR: Final = "doctor.check"
SERVICE_DOCTOR: Final = "otel-mlperf-doctor"


def step_span(phase: str) -> str:
    """Return the name of a step's span in ``phase``: ``train.step``."""
    return f"{phase}.step"


CATEGORY_OF: Final = {
    "data.load": DATA_LOADING,
    "data_loading": DATA_LOADING,
    "dataloader": DATA_LOADING,
    "collate": DATA_LOADING,
    TRANSFER: TRANSFER,
    "forward": FORWARD,
    SPAN_LOSS: FORWARD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "optimizer.step": OPTIMIZER,
    "zero_grad": OPTIMIZER,
    SPAN_CHECKPOINT: CHECKPOINT,
    "checkpoint.save": CHECKPOINT,
    SPAN_CHECKPOINT_LOAD: CHECKPOINT,
    "save_checkpoint": CHECKPOINT,
    "load_checkpoint": CHECKPOINT,
    SPAN_COMPILE: COMPILE,
    "all_reduce": COMMUNICATION,
    "all_gather": COMMUNICATION,
    "reduce_scatter": COMMUNICATION,
    "broadcast": COMMUNICATION,
    "all_to_all": COMMUNICATION,
    "barrier": COMMUNICATION,
}
"""The category that a section's name implies when none is given."""
