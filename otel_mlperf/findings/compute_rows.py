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
            "the loop likely spends {value:.0%} of a step {doing}, most of that time in {call} "
            "({place})"
        ),
        action=(
            "Move output, file access and .item() to every N steps or to another thread: keep "
            "losses as tensors, call .item() only for printed values, log and write in batches, "
            "and flush rarely."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="blocked_loop",
        name="BlockedLoop",
        severity="warning",
        threshold=0.1,
        summary=("the loop is blocked for {value:.0%} of a step, likely {doing}"),
        action=(
            "Write, log, send and save in batches every N steps or in another thread, and flush "
            "rarely. Request results from other processes before the loop needs these results."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="conversions",
        name="Conversions",
        severity="warning",
        threshold=0.1,
        summary=(
            "conversions between tensors, arrays and Python numbers likely take {value:.0%} of "
            "a step, most of that time in {call} ({place})"
        ),
        action=(
            "Keep data in tensors: operate on whole tensors instead of single elements, convert "
            "data once before the loop, use torch.from_numpy() instead of lists, and avoid "
            ".tolist(), .numpy() and .item() on values that are converted back to tensors."
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
            "torch.compile recompiles in {steps} of {all} steps: compilation takes {value:.0%} "
            "of the time of all steps"
        ),
        action=(
            "Shapes or arguments likely change: pad batches to a few sizes, drop the last "
            "incomplete batch (drop_last=True), use torch.compile(dynamic=True) or "
            "torch._dynamo.mark_dynamic(), and pass changing numbers as tensors. "
            "TORCH_LOGS=recompiles logs the reason of each recompilation."
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
            "Compute a whole batch or sequence with one operation instead of a Python loop "
            "(torch.stack, bmm, torch.vmap, nn.LSTM instead of nn.LSTMCell), use larger "
            "batches, or use torch.compile(). On a GPU, use "
            "torch.compile(mode='reduce-overhead') or torch.cuda.graph(), and an optimizer with "
            "fused=True."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="anomaly_detection",
        name="AnomalyDetection",
        severity="warning",
        threshold=0.05,
        summary=(
            "PyTorch's anomaly detection is on: storing the stack of each operation and "
            "checking gradients for NaN likely take at least {value:.0%} of a step"
        ),
        action=(
            "Disable anomaly detection for training (torch.autograd.set_detect_anomaly(False)). "
            "Enable anomaly detection only to repeat the steps in which NaN occurred, from the "
            "last checkpoint before these steps."
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
            "Use torch.set_float32_matmul_precision('high') (TF32), or run the forward pass "
            "under torch.autocast('cuda', torch.bfloat16), which also speeds up other "
            "operations. Check the loss afterwards."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="double_precision",
        name="DoublePrecision",
        severity="warning",
        threshold=0.1,
        summary=(
            "the model computes in float64 ({share:.0%} of its matrix products and convolutions): "
            "float32 would likely save at least {value:.0%} of a step"
        ),
        action=(
            "Convert data and model to float32: NumPy's default is float64, so use "
            ".astype(np.float32) or torch.as_tensor(data, dtype=torch.float32), and "
            "model.float(). Check the loss afterwards."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="dense_embeddings",
        name="DenseEmbeddings",
        severity="warning",
        threshold=0.1,
        summary=(
            "embedding tables have dense gradients: {share:.0%} of the trained parameters are rows "
            "that a step does not use, but fills with zeros and updates"
        ),
        action=(
            "Use nn.Embedding(..., sparse=True) with torch.optim.SparseAdam (or SGD or Adagrad), "
            "and the present optimizer for all other parameters. Or make the tables smaller."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="recomputed_activations",
        name="RecomputedActivations",
        severity="info",
        threshold=0.1,
        summary=(
            "activation checkpointing computes parts of the forward pass again in the backward "
            "pass, which likely takes at least {value:.0%} of a step"
        ),
        action=(
            "If memory allows, disable activation checkpointing (gradient_checkpointing=False), or "
            "wrap only the largest layers in torch.utils.checkpoint. Compare the peak memory in "
            "otel-mlperf summary with the memory of the device before."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="device_allocations",
        name="DeviceAllocations",
        severity="warning",
        threshold=1.0,
        summary=(
            "the CUDA allocator requests memory from the driver {value:.1f} times per step: "
            "likely the loop empties the allocator's cache, or tensor sizes vary"
        ),
        action=(
            "Remove torch.cuda.empty_cache() from the loop: the allocator reuses cached memory, "
            "and releasing memory waits for the GPU. If batches have many sizes, pad them to a "
            "few sizes or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        ),
        of_ended=True,
    ),
)
