"""Table of watched functions of torch and other libraries, with the moment of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from types import FunctionType

NOTHING: Final = "None"
"""Subject of calls that need no subject. For a checkpoint it means that the size is unknown,
because the call returns before the file is complete, or reads only part of it."""


class WatchedCall(NamedTuple):
    """A watched function of a library, with its moment."""

    name: str
    """Name of the function in its module: ``function`` or ``Class.method``."""
    does: Literal[
        "save",
        "load",
        "save_all",
        "load_all",
        "transfer",
        "training_step",
        "backward",
        "update",
        "validate",
        "evaluator",
        "epoch",
        "update_bn",
        "rollout",
        "prepare",
        "interrupt",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "all_to_all",
        "barrier",
    ]
    subject: str
    """Expression of the function's parameters: file or files of a checkpoint; batch and device of a
    transfer; accelerator and loss of a backward pass; optimizer wrapper of an update; owner of a
    training step or epoch; exception of an interrupt.
    """

    def subject_in(self, function: FunctionType) -> str:
        """Return ``subject`` if ``function`` has all parameters in ``subject``, else ``NOTHING``.

        Parameter names differ between versions of a library, and the expression must not fail.
        """
        code = function.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        used = compile(self.subject, "<subject>", "eval").co_names
        return self.subject if set(used) <= set(known) else NOTHING


_LIGHTNING_FILES: Final = (
    WatchedCall("_atomic_save", "save", "filepath"),
    WatchedCall("_load", "load", "path_or_url"),
)
# Watched as well: the code around ``_LIGHTNING_FILES`` may last as long as the write, when a file
# system is accessed for the first time.
_LIGHTNING_IO: Final = (
    WatchedCall("TorchCheckpointIO.save_checkpoint", "save", "path"),
    WatchedCall("TorchCheckpointIO.load_checkpoint", "load", "path"),
)
_LIGHTNING_SAVES: Final = (WatchedCall("Trainer.save_checkpoint", "save_all", NOTHING),)
_FABRIC_SAVES: Final = (
    WatchedCall("Fabric.save", "save_all", NOTHING),
    WatchedCall("Fabric.load", "load_all", NOTHING),
)
_LIGHTNING_MOVES: Final = (WatchedCall("move_data_to_device", "transfer", "(batch, device)"),)
_LIGHTNING_UPDATES: Final = (WatchedCall("LightningOptimizer.step", "update", "self"),)
# The first and last parts of an evaluation: `run`, the whole, is a wrapper without access to its
# subject.
_LIGHTNING_VALIDATES: Final = (
    WatchedCall("_EvaluationLoop.setup_data", "validate", NOTHING),
    WatchedCall("_EvaluationLoop.on_run_end", "validate", NOTHING),
)
_LIGHTNING_EPOCHS: Final = (WatchedCall("_FitLoop.on_advance_start", "epoch", "self"),)
_LIGHTNING_STEPS: Final = (WatchedCall("Strategy.training_step", "training_step", "self"),)
_LIGHTNING_INTERRUPTED: Final = (WatchedCall("_interrupt", "interrupt", "exception"),)
_COLLECTIVES: Final = (
    WatchedCall("all_reduce", "all_reduce", NOTHING),
    WatchedCall("all_gather", "all_gather", NOTHING),
    WatchedCall("all_gather_into_tensor", "all_gather", NOTHING),
    WatchedCall("all_gather_object", "all_gather", NOTHING),
    WatchedCall("reduce_scatter", "reduce_scatter", NOTHING),
    WatchedCall("reduce_scatter_tensor", "reduce_scatter", NOTHING),
    WatchedCall("broadcast", "broadcast", NOTHING),
    WatchedCall("broadcast_object_list", "broadcast", NOTHING),
    WatchedCall("all_to_all", "all_to_all", NOTHING),
    WatchedCall("all_to_all_single", "all_to_all", NOTHING),
    WatchedCall("barrier", "barrier", NOTHING),
)
WATCHED_CALLS: Final[dict[str, tuple[WatchedCall, ...]]] = {
    "torch.serialization": (
        WatchedCall("save", "save", "f"),
        WatchedCall("load", "load", "None if mmap else f"),
    ),
    "torch.distributed.distributed_c10d": _COLLECTIVES,
    "torch.distributed.checkpoint.state_dict_saver": (
        WatchedCall("save", "save", "checkpoint_id if process_group is None else None"),
        WatchedCall("async_save", "save", NOTHING),
    ),
    "torch.distributed.checkpoint.state_dict_loader": (WatchedCall("load", "load", NOTHING),),
    # An empty update, which initialises an optimizer's state before it is loaded.
    "torch.distributed.checkpoint.state_dict": (
        WatchedCall("_init_optim_state", "prepare", NOTHING),
    ),
    "safetensors.torch": (
        WatchedCall("save_file", "save", "filename"),
        WatchedCall("save_model", "save", "filename"),
        WatchedCall("load_file", "load", "filename"),
        WatchedCall("load_model", "load", "filename"),
    ),
    "transformers.modeling_utils": (
        WatchedCall("PreTrainedModel._load_pretrained_model", "load", "checkpoint_files"),
        WatchedCall("PreTrainedModel.save_pretrained", "save_all", NOTHING),
    ),
    "transformers.trainer": (
        WatchedCall("Trainer.evaluate", "validate", NOTHING),
        WatchedCall("Trainer._save_checkpoint", "save_all", NOTHING),
        WatchedCall("Trainer.save_model", "save_all", NOTHING),
    ),
    "transformers.trainer_callback": (
        WatchedCall("CallbackHandler.on_epoch_begin", "epoch", "state"),
    ),
    "peft.peft_model": (WatchedCall("PeftModel.save_pretrained", "save_all", NOTHING),),
    "diffusers.pipelines.pipeline_utils": (
        WatchedCall("DiffusionPipeline.save_pretrained", "save_all", NOTHING),
    ),
    "diffusers.models.modeling_utils": (
        WatchedCall("ModelMixin.save_pretrained", "save_all", NOTHING),
    ),
    "deepspeed.runtime.engine": (
        WatchedCall("DeepSpeedEngine.save_checkpoint", "save_all", NOTHING),
        WatchedCall("DeepSpeedEngine.load_checkpoint", "load_all", NOTHING),
    ),
    "torch.optim.swa_utils": (WatchedCall("update_bn", "update_bn", NOTHING),),
    "ignite.engine.engine": (WatchedCall("Engine.run", "evaluator", NOTHING),),
    "stable_baselines3.common.on_policy_algorithm": (
        WatchedCall("OnPolicyAlgorithm.collect_rollouts", "rollout", NOTHING),
    ),
    "stable_baselines3.common.off_policy_algorithm": (
        WatchedCall("OffPolicyAlgorithm.collect_rollouts", "rollout", NOTHING),
    ),
    "stable_baselines3.common.base_class": (
        WatchedCall("BaseAlgorithm.save", "save_all", NOTHING),
    ),
    "accelerate.accelerator": (
        WatchedCall("Accelerator.backward", "backward", "(self, loss)"),
        WatchedCall("Accelerator.save_state", "save_all", NOTHING),
        WatchedCall("Accelerator.save_model", "save_all", NOTHING),
        WatchedCall("Accelerator.load_state", "load_all", NOTHING),
    ),
    "accelerate.optimizer": (WatchedCall("AcceleratedOptimizer.step", "update", "self"),),
    "accelerate.utils.operations": (WatchedCall("send_to_device", "transfer", "(tensor, device)"),),
    "lightning.fabric.utilities.cloud_io": _LIGHTNING_FILES,
    "lightning_fabric.utilities.cloud_io": _LIGHTNING_FILES,
    "lightning.fabric.plugins.io.torch_io": _LIGHTNING_IO,
    "lightning_fabric.plugins.io.torch_io": _LIGHTNING_IO,
    "lightning.fabric.utilities.apply_func": _LIGHTNING_MOVES,
    "lightning_fabric.utilities.apply_func": _LIGHTNING_MOVES,
    "lightning.fabric.fabric": _FABRIC_SAVES,
    "lightning_fabric.fabric": _FABRIC_SAVES,
    "lightning.pytorch.trainer.trainer": _LIGHTNING_SAVES,
    "pytorch_lightning.trainer.trainer": _LIGHTNING_SAVES,
    "lightning.pytorch.loops.fit_loop": _LIGHTNING_EPOCHS,
    "pytorch_lightning.loops.fit_loop": _LIGHTNING_EPOCHS,
    "lightning.pytorch.strategies.strategy": _LIGHTNING_STEPS,
    "pytorch_lightning.strategies.strategy": _LIGHTNING_STEPS,
    "lightning.pytorch.core.optimizer": _LIGHTNING_UPDATES,
    "pytorch_lightning.core.optimizer": _LIGHTNING_UPDATES,
    "lightning.pytorch.loops.evaluation_loop": _LIGHTNING_VALIDATES,
    "pytorch_lightning.loops.evaluation_loop": _LIGHTNING_VALIDATES,
    "lightning.pytorch.trainer.call": _LIGHTNING_INTERRUPTED,
    "pytorch_lightning.trainer.call": _LIGHTNING_INTERRUPTED,
}
"""Watched calls by module; many programs never import most of these modules."""
