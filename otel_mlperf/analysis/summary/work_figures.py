"""Work of the models: floating point operations, and model FLOPs utilization (MFU).

Only steps with known operations are used. The warm-up and failed steps are excluded, as in other
figures. An unknown figure, and every figure derived from it, is None.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.step_shapes import WarmUp
    from otel_mlperf.store.table_reader import Store

_SIX: Final = 6
"""Floating point operations per parameter and token: 2 forward, 4 backward."""
FORMULAS: Final = {
    "flops_per_step": "mean of the steps whose operations were counted (torch.utils.flop_counter: "
    "matrix products, convolutions and attention, forward and one backward pass; a multiplication "
    "and an addition are two)",
    "flops_per_parameter": "flops_per_step / parameters",
    "flops_per_s": "operations of the counted steps / duration of these steps, per rank",
    "mfu": "flops_per_s / peak_flops_per_s (MFU: Chowdhery et al., PaLM, 2022, appendix B)",
    "six_nd_flops_per_step": "6 x (parameters - embedding) x tokens of a step (6ND: Kaplan et al., "
    "Scaling Laws for Neural Language Models, 2020): transformers, without attention over the text",
    "six_nd_mfu": "six_nd_flops_per_step / mean time of a step / peak_flops_per_s",
}
"""Formula and assumptions of each derived figure, by field name."""


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of parameters of one model."""

    name: str
    """Class of the model."""
    parameters: int
    trainable: int
    embedding: int
    """Parameters of lookup tables."""


class WorkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Work of the models that the program declared, on one rank."""

    models: list[ModelSize]
    parameters: int
    trainable: int
    steps: int
    """Steps with known operations, over all ranks."""
    of_steps: int
    """All steps of the phase, with or without known operations, over all ranks."""
    flops_per_step: float | None
    flops_per_parameter: float | None
    flops_per_s: float | None
    peak_flops_per_s: float | None
    peak_type: str
    """Data type of matrix products; empty: the peak is unknown."""
    peak_source: str
    """Title of a data sheet, or ``given``."""
    peak_device: str
    mfu: float | None
    """Model FLOPs utilization, from 0 to 1."""
    six_nd_flops_per_step: float | None
    six_nd_mfu: float | None
    formulas: dict[str, str]
    """Formula of each known figure above."""


def read_work(store: Store, phase: str | None, warm_up: WarmUp | None) -> WorkFigures | None:
    """Return the work of the phase's steps, or None if the user's program declared no model."""
    models = _models(store)
    if not models:
        return None
    steps, counted, flops, flops_ns, tokens, tokens_ns, with_tokens = _steps(store, phase, warm_up)
    parameters = sum(model.parameters for model in models)
    multiplying = parameters - sum(model.embedding for model in models)
    per_step = flops / counted if counted else None
    per_s = flops * 1e9 / flops_ns if counted and flops_ns else None
    peak, about = _peak(store)
    is_text = with_tokens and multiplying < parameters
    six_nd = _SIX * multiplying * tokens / with_tokens if is_text else None
    six_nd_per_s = six_nd * with_tokens * 1e9 / tokens_ns if six_nd and tokens_ns else None
    figures: dict[str, Any] = {
        "flops_per_step": per_step,
        "flops_per_parameter": per_step / parameters if per_step is not None else None,
        "flops_per_s": per_s,
        "mfu": per_s / peak if per_s is not None and peak else None,
        "six_nd_flops_per_step": six_nd,
        "six_nd_mfu": six_nd_per_s / peak if six_nd_per_s is not None and peak else None,
    }
    return WorkFigures(
        models=models,
        parameters=parameters,
        trainable=sum(model.trainable for model in models),
        steps=counted,
        of_steps=steps,
        peak_flops_per_s=peak,
        peak_type=about.get(names.FLOPS_TYPE, ""),
        peak_source=about.get(names.PEAK_SOURCE, ""),
        peak_device=about.get(names.HW_MODEL, ""),
        formulas={key: FORMULAS[key] for key, value in figures.items() if value is not None},
        **figures,
    )


def _models(store: Store) -> list[ModelSize]:
    rows = store.rows(
        "SELECT labels, max(value) FROM readings WHERE name = $name AND NOT isnan(value) "
        "GROUP BY labels ORDER BY labels",
        name=names.MODEL_PARAMETERS.name,
    )
    sizes: dict[str, dict[str, int]] = {}
    for labels, value in rows:
        known = json.loads(labels)
        of = sizes.setdefault(known[names.MODEL_NAME], {})
        of[known[names.PARAMETERS_KIND]] = int(value)
    return [
        ModelSize(
            name=name,
            parameters=of.get(names.PARAMETERS_TOTAL, 0),
            trainable=of.get(names.PARAMETERS_TRAINABLE, 0),
            embedding=of.get(names.PARAMETERS_EMBEDDING, 0),
        )
        for name, of in sizes.items()
    ]


def _steps(store: Store, phase: str | None, warm_up: WarmUp | None) -> tuple[Any, ...]:
    """Return counts and sums of the steps.

    In order: number of steps; number, operations and time of steps with known operations; tokens,
    time and number of steps with known tokens.
    """
    (row,) = store.rows(
        "SELECT count(*), count(flops), coalesce(sum(flops), 0)::DOUBLE, "
        "coalesce(sum(duration_ns) FILTER (flops NOTNULL), 0)::DOUBLE, "
        "coalesce(sum(tokens), 0)::DOUBLE, "
        "coalesce(sum(duration_ns) FILTER (tokens NOTNULL), 0)::DOUBLE, count(tokens) "
        "FROM steps WHERE phase = $phase AND n >= $first AND NOT error",
        phase=phase,
        first=1 if warm_up else 0,
    )
    return tuple(row)


def _peak(store: Store) -> tuple[float | None, dict[str, str]]:
    """Return peak FLOP/s and labels of the ranks' device; None if unknown or if devices differ."""
    rows = store.rows(
        "SELECT DISTINCT labels, value FROM readings WHERE name = $name AND NOT isnan(value)",
        name=names.FLOPS_PEAK.name,
    )
    if len(rows) != 1:
        return None, {}
    labels, value = rows[0]
    return float(value), json.loads(labels)
