"""Roll-up of the short sections of a trace that exceeds its span budget.

Over budget, the longest sections and their ancestors remain spans. All other sections are rolled
up: one span for each parent and name, with count, sum, minimum and maximum. No duration is lost:
spans and roll-ups together sum to the same total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.agent.model.kept_span import SampledSpan, made_id

if TYPE_CHECKING:
    from collections.abc import Sequence


def within_budget(spans: Sequence[SampledSpan], budget: int) -> list[SampledSpan]:
    """Return the ``spans`` of one trace and rank, reduced by roll-ups to about ``budget``."""
    if len(spans) <= budget:
        return list(spans)
    # The longest spans with their ancestors: the tree stays connected, and omitted spans are short.
    kept = _longest(spans, budget)
    parents = {span.span: span.parent for span in spans if span.span not in kept}
    nearest: dict[int, int] = {}
    groups: dict[tuple[int, int], list[SampledSpan]] = {}
    for span in spans:
        if span.span not in kept:
            # The nearest kept ancestor: a roll-up below a span that is not sent would be an orphan.
            above = _nearest_kept(span.parent, parents, nearest)
            groups.setdefault((above, span.name), []).append(span)
    return [span for span in spans if span.span in kept] + [
        _roll_up(above, members) for (above, _), members in groups.items()
    ]


def _nearest_kept(above: int, parents: dict[int, int], nearest: dict[int, int]) -> int:
    visited = []
    while above in parents and above not in nearest:
        visited.append(above)
        nearest[above] = above  # preliminary value: ends the loop if damaged ids form a cycle
        above = parents[above]
    found = nearest.get(above, above)
    nearest.update(dict.fromkeys(visited, found))
    return found


def _longest(spans: Sequence[SampledSpan], budget: int) -> set[int]:
    by_id = {span.span: span for span in spans}
    kept: set[int] = set()
    limit = max(1, budget // 2)
    for span in sorted(spans, key=lambda s: s.start - s.end):
        chain: dict[int, None] = {}
        at = span
        # Stop at the limit: a recursion may be deeper than the budget.
        while at.span not in kept and len(kept) + len(chain) <= limit:
            chain[at.span] = None
            if at.parent not in by_id or at.parent in chain:
                break
            at = by_id[at.parent]
        if len(kept) + len(chain) <= limit:
            kept.update(chain)
    return kept


def _roll_up(above: int, members: list[SampledSpan]) -> SampledSpan:
    first = min(members, key=lambda m: m.start)
    spent = [m.end - m.start for m in members]
    return SampledSpan(
        journal=first.journal,
        # Includes the first span: late rows create a second roll-up of the same parent and name.
        span=made_id(f"{above:x}/{first.name}/{first.span:x}"),
        parent=above,
        trace=first.trace,
        start=first.start,
        end=max(m.end for m in members),
        name=first.name,
        track=first.track,
        root=first.root,
        reason=first.reason,
        error=any(m.error for m in members),
        n=first.n,
        number=first.number,
        epoch=first.epoch,
        kind="rollup",
        rolled_up=len(members),
        payload={
            "a": {
                names.ROLLED_UP: len(members),
                names.ROLLED_UP_SUM: sum(spent),
                names.ROLLED_UP_MIN: min(spent),
                names.ROLLED_UP_MAX: max(spent),
            }
        },
    )
