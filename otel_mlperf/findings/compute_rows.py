"""Rows of the findings table about the computation in steps, and lines that block the loop."""

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
            "Do it only every N steps, or in another thread: keep losses as tensors and call "
            ".item() when they are printed, log and write in batches, flush rarely."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="blocked_loop",
        name="BlockedLoop",
        severity="warning",
        threshold=0.1,
        summary=(
            "for {value:.0%} of a step the loop is blocked outside of all sections: likely {doing}"
        ),
        action=(
            "Write, log, send and save in batches every N steps, or in another thread, and flush "
            "rarely; request results from other processes before they are needed."
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
            "Keep data in tensors: operate on whole tensors instead of their elements, convert once"
            " before the loop, use torch.from_numpy() instead of lists, and avoid .tolist(), "
            ".numpy() and .item() on values that become tensors again."
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
            "torch.compile recompiles in {steps} of {all} steps: {value:.0%} of the steps' time"
        ),
        action=(
            "Likely shapes or arguments change: pad batches to a few sizes, drop the last one "
            "(drop_last=True), use torch.compile(dynamic=True) or torch._dynamo.mark_dynamic(), and"
            " pass changing numbers as tensors. TORCH_LOGS=recompiles shows the reason."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="small_operators",
        name="SmallOperators",
        severity="warning",
        threshold=0.35,
        summary="the model likely runs too many small operators: {how}",
        action=(
            "Compute a whole batch or sequence with one operation instead of a Python loop over its"
            " items (torch.stack, bmm, nn.LSTM instead of cells, torch.vmap), use larger batches, "
            "or torch.compile(); on a GPU with mode='reduce-overhead' or torch.cuda.graph(), and an"
            " optimizer with fused=True."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="anomaly_detection",
        name="AnomalyDetection",
        severity="warning",
        threshold=0.05,
        summary=(
            "torch's anomaly detection is on: it keeps the stack of each operation and, by default,"
            " checks its gradient for NaN: likely at least {value:.0%} of a step"
        ),
        action=(
            "Switch it off for training; switch it on only to repeat the steps in which NaN "
            "occurred, from the checkpoint before them."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="full_precision",
        name="FullPrecision",
        severity="warning",
        threshold=0.1,
        summary=(
            "matrix products run in float32, without the tensor cores of the {device}: TF32 alone "
            "would likely save {value:.0%} of a step"
        ),
        action=(
            "Use torch.set_float32_matmul_precision('high') (TF32), or run the forward pass under "
            "torch.autocast('cuda', torch.bfloat16), which speeds up its other operations, too; "
            "check the loss afterwards."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="device_allocations",
        name="DeviceAllocations",
        severity="warning",
        threshold=1.0,
        summary=(
            "the CUDA allocator requests memory from the driver {value:.1f} times a step, as if its"
            " cache were emptied in between"
        ),
        action=(
            "Remove torch.cuda.empty_cache() from the loop: cached memory is reused, and releasing "
            "it waits for the GPU. If batches have many sizes, use few sizes or "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        ),
        of_ended=True,
    ),
)
