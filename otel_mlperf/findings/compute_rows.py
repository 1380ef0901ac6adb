"""Rows of the findings table about how a step computes, and about lines that hold it up."""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.finding_row import FindingRow

SAMPLED_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="sync_in_loop",
        name="SyncInLoop",
        severity="warning",
        threshold=0.1,
        summary=(
            "the loop likely spends {value:.0%} of a step {doing}, most of it in {call} ({place})"
        ),
        action=(
            "Do it every so many steps, or in another thread: keep losses as tensors and call "
            ".item() when they are printed, log and write what has been collected, flush seldom."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="blocked_loop",
        name="BlockedLoop",
        severity="warning",
        threshold=0.1,
        summary="for {value:.0%} of a step the loop stands still in no section: likely {doing}",
        action=(
            "Write, log, send and save what has been collected every so many steps, or in another "
            "thread, and flush seldom; ask other processes for results before they are needed."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="conversions",
        name="Conversions",
        severity="warning",
        threshold=0.1,
        summary=(
            "converting between tensors, arrays and Python numbers likely takes {value:.0%} of a "
            "step, most of it {call} ({place})"
        ),
        action=(
            "Stay with tensors: operate on whole tensors instead of their elements, convert once "
            "before the loop, torch.from_numpy() instead of lists, and no .tolist(), .numpy() or "
            ".item() for what goes back into a tensor."
        ),
        of_ended=True,
    ),
)


COMPUTE_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="recompilation",
        name="Recompilation",
        severity="warning",
        threshold=0.05,
        summary=(
            "torch.compile compiles again in {steps} of {all} steps: {value:.0%} of the steps' time"
        ),
        action=(
            "Likely shapes or arguments change: pad batches to a few sizes, drop the last one "
            "(drop_last=True), use torch.compile(dynamic=True) or torch._dynamo.mark_dynamic(), "
            "and pass numbers that change as tensors. TORCH_LOGS=recompiles says what changed."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="small_operators",
        name="SmallOperators",
        severity="warning",
        threshold=0.35,
        summary=("the model is likely computed in too small pieces: {how}"),
        action=(
            "Compute a whole batch or sequence by one operation instead of a Python loop over its "
            "items (torch.stack, bmm, nn.LSTM for cells, torch.vmap), use larger batches, or "
            "torch.compile(); on a GPU with mode='reduce-overhead' or torch.cuda.graph(), and an "
            "optimizer with fused=True."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="anomaly_detection",
        name="AnomalyDetection",
        severity="warning",
        threshold=0.05,
        summary=(
            "torch's anomaly detection is on: the stack of each operation is kept and, as it is "
            "by default, its gradient looked at for NaN: likely at least {value:.0%} of a step"
        ),
        action=(
            "Leave it out of what trains; switch it on, from the checkpoint before, for the steps "
            "in which NaN has come up."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="full_precision",
        name="FullPrecision",
        severity="warning",
        threshold=0.1,
        summary=(
            "products of matrices are made in float32, without the tensor cores of the {device}: "
            "with TF32 these alone would likely take {value:.0%} of a step less"
        ),
        action=(
            "torch.set_float32_matmul_precision('high') (TF32), or the forward pass under "
            "torch.autocast('cuda', torch.bfloat16), which makes the rest of it faster, too; look "
            "at the loss afterwards."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="device_allocations",
        name="DeviceAllocations",
        severity="warning",
        threshold=1.0,
        summary=(
            "the CUDA allocator asks the driver for memory {value:.1f} times a step, as if nothing "
            "were kept in between"
        ),
        action=(
            "Leave torch.cuda.empty_cache() out of the loop: what is kept is used again, and to "
            "give it back waits for the GPU. Where batches are of many sizes: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or few sizes."
        ),
        of_ended=True,
    ),
)
