"""From when on is it worth a word that a step computes in too small pieces, or compiles?"""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.finding_row import FindingRow

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
)
