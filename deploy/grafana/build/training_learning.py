"""What does a training run learn, and for what does it pause?"""

from __future__ import annotations

from typing import Final

from dashboard import to
from panels import Panel, Query, Row
from promql import by, rate, series, shown, where

from otel_mlperf import names


def _logged(title: str, question: str, metric: names.Metric) -> Panel:
    numbers = f"{series(metric)} == {series(metric)}"  # nothing equals NaN, not even NaN
    return Panel(
        kind="timeseries",
        title=title,
        question=question,
        queries=(Query(by("avg", (names.ML_PHASE,), numbers), shown(names.ML_PHASE)),),
        none="It is not logged: log(loss=..., lr=..., grad_norm=...).",
        link=to("ranks", "Ranks"),
        width=8,
    )


LEARNING: Final = Row(
    "Learning",
    (
        _logged(
            "Loss",
            "Does it learn? The loss as last logged, mean of the ranks that have a number, by "
            "phase. A sudden jump: compare with the learning rate and the gradient norm then.",
            names.LOSS,
        ),
        _logged(
            "Learning rate",
            "What is the learning rate? As last logged. A jump where none was planned: look at the "
            "schedule, and whether a restart began it anew.",
            names.LEARNING_RATE,
        ),
        _logged(
            "Gradient norm",
            "Do gradients explode or vanish? As last logged, mean of the ranks. A spike just "
            "before the loss jumps: clip, or lower the learning rate.",
            names.GRADIENT_NORM,
        ),
        Panel(
            kind="timeseries",
            title="Ranks whose loss is not a number",
            question=(
                "Has it diverged? Ranks whose loss as last logged is NaN. Above zero: stop, go "
                "back to the checkpoint before, and look at the batch and the gradient norm there."
            ),
            queries=(
                Query(
                    f"count({series(names.LOSS)} != {series(names.LOSS)}) "
                    f"or 0 * count({series(names.LOSS)})",
                    "ranks",
                ),
            ),
            limits=(1,),
            decimals=0,
            none="No loss is logged.",
            link=to("ranks", "Ranks"),
            width=8,
        ),
        Panel(
            kind="timeseries",
            title="Validation and checkpoint",
            question=(
                "How long do the pauses take? Mean duration of phases and checkpoints that ended. "
                "Growing checkpoints: the storage; growing validation: its data loading."
            ),
            queries=(
                Query(
                    "histogram_avg("
                    + by(
                        "sum",
                        (names.SECTION_NAME,),
                        rate(
                            names.SECTION_DURATION,
                            where(SECTION_CATEGORY=f"~{names.PHASE}|{names.CHECKPOINT}"),
                        ),
                    )
                    + ")",
                    shown(names.SECTION_NAME),
                ),
            ),
            unit="s",
            none="Neither has ended in this time.",
            link=to("ranks", "Ranks"),
            width=8,
        ),
    ),
    collapsed=True,
)
