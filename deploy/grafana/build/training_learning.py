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
        none="Not logged: log(loss=..., lr=..., grad_norm=...).",
        link=to("ranks", "Ranks"),
        width=8,
    )


LEARNING: Final = Row(
    "Learning",
    (
        _logged(
            "Loss",
            "Does the model learn? Last logged loss by phase, mean of the selected ranks; NaN is "
            "left out. A sudden jump: compare *Learning rate* and *Gradient norm* at that time.",
            names.LOSS,
        ),
        _logged(
            "Learning rate",
            "Does the learning rate follow its schedule? Last logged learning rate by phase, mean "
            "of the selected ranks. An unplanned jump: check the schedule, and whether a restart "
            "reset it.",
            names.LEARNING_RATE,
        ),
        _logged(
            "Gradient norm",
            "Do gradients explode or vanish? Last logged gradient norm by phase, mean of the "
            "selected ranks; NaN is left out. A spike just before the loss jumps: clip gradients "
            "or lower the learning rate.",
            names.GRADIENT_NORM,
        ),
        Panel(
            kind="timeseries",
            title="NaN losses",
            question=(
                "Has the training diverged? Number of last logged losses that are NaN, counted "
                "once per selected rank and phase. Above zero: stop, resume from an earlier "
                "checkpoint, and check the batch and the gradient norm at that step."
            ),
            queries=(
                Query(
                    f"count({series(names.LOSS)} != {series(names.LOSS)}) "
                    f"or 0 * count({series(names.LOSS)})",
                    "NaN losses",
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
                "How long do validation and checkpoints take? Mean duration of completed phases "
                "and checkpoints, by section, over the selected ranks. Longer checkpoints: check "
                "the storage. Longer validation: check its data loading."
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
            none="No phase or checkpoint ended in this time range.",
            link=to("ranks", "Ranks"),
            width=8,
        ),
    ),
    collapsed=True,
)
