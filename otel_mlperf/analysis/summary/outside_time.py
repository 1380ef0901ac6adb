"""Breakdown by section of the time outside steps, and of the time concurrent to steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shapes import AggregateTotal, Row
from otel_mlperf.analysis.steps.step_shares import UNTRACKED, shown
from otel_mlperf.analysis.summary.summary_shapes import Branch, OutsideShare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.store.table_reader import Store


SET_UP = "set-up"
_CONTAINERS = (names.EPOCH, names.RUN)


@dataclass(slots=True)
class Node:
    """A section outside steps at one path, with sums over all of its calls on all ranks."""

    path: str
    name: str
    category: str = names.OTHER
    beside: bool = False
    aggregate: bool = False
    count: int = 0
    sum_ns: int = 0
    self_ns: int = 0
    start_ns: int = 0
    inside: list[Node] = field(default_factory=list)
    steps_ns: Counter[str] = field(default_factory=Counter)
    """Time of the steps inside the section, by phase."""
    is_open: bool = False
    """Whether a call of the section has probably not ended yet."""

    @property
    def total_ns(self) -> int:
        """Return the section's time in ns; if no call has finished, that of the sections inside.

        The time of an aggregated section excludes inner sections that are not aggregated. Such
        inner sections are siblings of the aggregated section in the tree, not children.
        """
        if not self.aggregate and (self.count or not self.inside):
            return self.sum_ns
        mine = (node for node in self.inside if self.beside or not node.beside)
        return self.self_ns + sum(node.total_ns for node in mine)

    def contains_steps(self, phase: str) -> bool:
        """Return whether steps of ``phase`` ran in the section.

        The time of such a section is not outside steps. The result is also True for a section with
        an open call, because that call might contain steps.
        """
        if self.aggregate:
            return False
        is_block = self.category == names.PHASE and self.name == phase
        is_around = is_block or self.category in _CONTAINERS
        return is_around or self.is_open or self.steps_ns[phase] > 0

    def find_steps(self, phase: str = names.TRAIN) -> None:
        """Compute ``steps_ns``: the section's time that is neither self time nor in a subsection.

        ``phase`` is the phase of the steps inside, unless a section declares another one.
        """
        if self.category == names.PHASE and self.name in names.PHASES:
            phase = self.name
        mine = [node for node in self.inside if not node.beside]
        for node in mine:
            node.find_steps(phase)
        known = self.self_ns + sum(node.total_ns for node in mine)
        remainder = 0 if self.aggregate else self.sum_ns - known
        # Tolerated: a section whose end is detected late, such as a validation, does not include
        # garbage collections after its end.
        pauses = sum(node.sum_ns for node in mine if node.category == names.GARBAGE_COLLECTION)
        remainder = remainder if remainder >= 0 else min(0, remainder + pauses)
        self.is_open = remainder < 0 or not self.count or any(node.is_open for node in mine)
        self.steps_ns = sum((node.steps_ns for node in mine), +Counter({phase: remainder}))


_ByPath = dict[tuple[str, bool], Node]


def read_nodes(store: Store) -> list[Node]:
    """Return the outermost sections outside steps, each with nested sections, sorted by start."""
    rows = store.rows(
        "SELECT path, name, min(category), beside, aggregate, sum(count), sum(sum_ns), "
        "sum(self_ns), min(start_ns) AS start FROM sections "
        # Excludes aggregates without a path: they belong to a step that never ended.
        "WHERE n IS NULL AND category <> $run AND (NOT aggregate OR path <> '') "
        "GROUP BY path, name, beside, aggregate ORDER BY length(path), beside, start",
        run=names.RUN,
    )
    by_path: _ByPath = {}
    outermost: list[Node] = []
    for path, name, category, beside, aggregate, count, total, own, start in rows:
        times = int(count), int(total), int(own), start
        node = Node(path, name, category, beside, aggregate, *times)
        around = path[: -len(name) - 1].rstrip("/") if path.endswith("/" + name) else ""
        _place(node, around, by_path, outermost)
        by_path.setdefault((path, node.beside), node)
    _in_order(outermost)
    for node in outermost:
        node.find_steps()
    return outermost


def _place(node: Node, around: str, by_path: _ByPath, outermost: list[Node]) -> None:
    """Insert a node below the section at path ``around``, or as outermost if ``around`` is empty.

    Missing enclosing sections are created: they are missing because they are still open.
    """
    while around and not (known := _find(around, node.beside, by_path)):
        # A name may contain a slash: splitting it only adds a line to the tree.
        above, _, name = around.rpartition("/")
        synthesized = Node(around, name, inside=[node], start_ns=node.start_ns)
        by_path[around, False] = synthesized
        node, around = synthesized, above
    (known.inside if around and known else outermost).append(node)


def _find(path: str, beside: bool, by_path: _ByPath) -> Node | None:
    """Return the section at ``path``, or None.

    If ``beside``, the fallback is a section of the main thread: it can enclose a forked child's
    sections.
    """
    return by_path.get((path, beside)) or by_path.get((path, False))


def _in_order(nodes: list[Node]) -> None:
    pending = [nodes]
    while pending:
        level = pending.pop()
        level.sort(key=lambda node: (node.beside, node.start_ns))
        # A list, not recursion: programs may nest sections without limit.
        pending += [node.inside for node in level]


def entries(nodes: list[Node], phase: str) -> Iterator[Node]:
    """Yield the outermost sections that contain no steps of ``phase`` and are not concurrent."""
    pending = list(nodes)
    while pending:
        node = pending.pop(0)
        if node.beside:
            continue
        if node.contains_steps(phase):
            pending += node.inside
        else:
            yield node


def outside_steps(
    store: Store, nodes: list[Node], phase: str, processes: Processes, total_ns: float
) -> list[OutsideShare]:
    """Return the breakdown of ``total_ns``, the time outside the steps of ``phase``, longest first.

    Times are means per rank. The entry for set-up is the untracked time before the first step; the
    last entry is all other untracked time. Steps of other phases that no section contains are
    listed by phase.
    """
    named = list(entries(nodes, phase))
    ranks = processes.ranks
    sums: dict[str, list[float]] = {}
    for node in named:
        total = sums.setdefault(shown(node.name), [0.0, 0.0])
        total[0] += node.total_ns / ranks
        total[1] += node.count / ranks
    shares = [
        OutsideShare(name=name, sum_ns=spent, count=round(count))
        for name, (spent, count) in sums.items()
    ]
    others = _other_steps(store, named, phase)
    shares += [
        OutsideShare(name=f"{other} steps", sum_ns=spent / ranks, count=round(count / ranks))
        for other, (spent, count) in others.items()
    ]
    set_up = _set_up_ns(store, named, phase, processes, list(others))
    rest = total_ns - set_up - sum(share.sum_ns for share in shares)
    shares.append(OutsideShare(name=SET_UP, sum_ns=set_up))
    shares.sort(key=lambda share: -share.sum_ns)
    return [*shares, OutsideShare(name=UNTRACKED, sum_ns=max(0.0, rest))]


def outside_ns(store: Store, phase: str, processes: Processes) -> float:
    """Return the lifetime of a rank without its steps of ``phase``, in ns; mean over the ranks."""
    (steps,), *_ = store.rows(
        "SELECT sum(duration_ns) FROM steps WHERE phase = $phase", phase=phase
    )
    return max(0.0, (processes.busy_ns - int(steps)) / processes.ranks)


def _other_steps(store: Store, named: list[Node], phase: str) -> dict[str, tuple[int, int]]:
    """Return time and number of steps by phase, for other phases whose steps no section contains.

    A section with the name of a phase counts as containing the steps of that phase, because earlier
    versions did not declare phases.
    """
    contained = sum((node.steps_ns for node in named), Counter({node.name: 1 for node in named}))
    rows = store.rows(
        "SELECT phase, sum(duration_ns)::BIGINT, count(*) FROM steps WHERE phase <> $phase "
        "GROUP BY phase ORDER BY phase",
        phase=phase,
    )
    return {other: (spent, count) for other, spent, count in rows if not contained[other]}


def _set_up_ns(
    store: Store, named: list[Node], phase: str, processes: Processes, others: list[str]
) -> float:
    first = {
        (rank, restart): start
        for rank, restart, start in store.rows(
            "SELECT rank, restart, min(start_ns) FROM steps WHERE phase = $phase GROUP BY ALL",
            phase=phase,
        )
    }
    before = {
        (rank, restart): int(total)
        for rank, restart, total in store.rows(
            "SELECT s.rank, s.restart, sum(if(aggregate, s.self_ns, s.sum_ns)) "
            "FROM sections s JOIN (SELECT rank, restart, "
            "min(start_ns) AS first FROM steps WHERE phase = $phase GROUP BY ALL) "
            "USING (rank, restart) WHERE s.n IS NULL AND NOT s.beside AND s.start_ns < first "
            "AND list_contains($paths, s.path) GROUP BY ALL",
            phase=phase,
            paths=[path for node in named for path in _summed_paths(node)],
        )
    }
    steps_before = {
        (rank, restart): int(total)
        for rank, restart, total in store.rows(
            "SELECT s.rank, s.restart, sum(duration_ns) FROM steps s JOIN (SELECT rank, restart, "
            "min(start_ns) AS first FROM steps WHERE phase = $phase GROUP BY ALL) "
            "USING (rank, restart) WHERE s.start_ns < first AND list_contains($others, s.phase) "
            "GROUP BY ALL",
            phase=phase,
            others=others,
        )
    }
    total = 0
    for process in processes.all:
        key = (process.rank, process.restart)
        if key in first:
            known = before.get(key, 0) + steps_before.get(key, 0)
            total += max(0, first[key] - process.start_ns - known)
    return total / processes.ranks


def _summed_paths(node: Node) -> Iterator[str]:
    """Yield a section's path and, for an aggregated section, all paths inside."""
    yield node.path
    if node.aggregate:
        for inner in node.inside:
            yield from _summed_paths(inner)


def read_left_open(store: Store) -> list[str]:
    """Return the names of sections that were never closed and therefore ended with the process."""
    rows = store.rows(
        "SELECT DISTINCT name FROM sections s JOIN processes p USING (rank, restart) "
        "WHERE s.n IS NULL AND s.count = 1 AND s.category NOT IN ($run, $epoch) "
        "AND p.outcome = 'finished' AND s.start_ns + s.sum_ns = p.end_ns "
        "AND s.start_ns > p.start_ns ORDER BY name",
        run=names.RUN,
        epoch=names.EPOCH,
    )
    return [shown(name) for (name,) in rows]


def read_aggregates(store: Store) -> list[AggregateTotal]:
    """Return the totals of aggregated sections, longest first."""
    rows = store.records(
        "SELECT name, min(category) AS category, parent AS enclosing, phase, "
        "(beside AND (n IS NULL OR path = '')) AS beside, "  # with a path: part of a data wait
        "sum(count)::BIGINT AS count, sum(sum_ns)::BIGINT AS sum_ns, "
        "sum(self_ns)::BIGINT AS self_ns, min(min_ns) AS min_ns, "
        "max(max_ns) AS max_ns FROM sections WHERE aggregate "
        "GROUP BY ALL ORDER BY sum_ns DESC"
    )
    return [AggregateTotal(**row) for row in rows]


def read_tree(nodes: list[Node], processes: Processes) -> list[Branch]:
    """Return the sections of a run without steps, parents before children, untracked time last."""
    life, ranks = processes.busy_ns, processes.ranks
    branches = []
    pending = [(node, 0) for node in reversed(nodes)]
    while pending:
        node, depth = pending.pop()
        pending += [(below, depth + 1) for below in reversed(node.inside)]
        branches.append(_branch(node, depth, node.self_ns, life, ranks))
    rest = max(0, life - sum(node.total_ns for node in nodes if not node.beside))
    remainder = Node("", UNTRACKED, count=0, sum_ns=rest, self_ns=rest)
    return [*branches, _branch(remainder, 0, rest, life, ranks)]


def _branch(node: Node, depth: int, own: int, life: int, ranks: int) -> Branch:
    return Branch(
        name=shown(node.name),
        depth=depth,
        count=round(node.count / ranks),
        sum_ns=(node.sum_ns if node.aggregate else node.total_ns) / ranks,
        self_ns=own / ranks,
        share=own / life if life else 0.0,
        beside=node.beside,
    )


def concurrent_sections(nodes: list[Node], processes: Processes) -> list[OutsideShare]:
    """Return sections on other threads and tasks outside steps: means per rank, longest first.

    Because these sections are concurrent, their times can sum to more than all time outside steps.
    """
    sums: dict[str, list[int]] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if not node.beside:
            pending += node.inside
            continue
        total = sums.setdefault(shown(node.name), [0, 0])
        total[0] += node.total_ns
        total[1] += node.count
    ranks = processes.ranks
    shares = [
        OutsideShare(name=name, sum_ns=total / ranks, count=round(count / ranks))
        for name, (total, count) in sums.items()
    ]
    return sorted(shares, key=lambda share: -share.sum_ns)


def with_concurrent_rows(store: Store, steps: StepFigures, nodes: list[Node]) -> StepFigures:
    """Return the step figures, adding a row for each concurrent section that is in no step.

    For example, sections of DataLoader workers are in no step. The mean of such a row is the self
    time in the whole run divided by all steps of the phase. Quantiles are unknown.
    """
    ((ran,),) = store.rows("SELECT count(*) FROM steps WHERE phase = $phase", phase=steps.phase)
    rows = [
        Row(
            name=name,
            category=own.category,
            mean_ns=own.spent_ns / ran,
            p95_ns=None,
            share=own.spent_ns / ran / steps.mean_ns if steps.mean_ns else 0.0,
            beside=True,
            aggregate=is_aggregate,
        )
        for (name, is_aggregate), own in _own_times(nodes).items()
        if own.spent_ns
    ]
    return replace(steps, rows=[*steps.rows, *sorted(rows, key=lambda row: -row.mean_ns)])


@dataclass(slots=True)
class _Own:
    category: str
    spent_ns: int = 0


def _own_times(nodes: list[Node]) -> dict[tuple[str, bool], _Own]:
    own: dict[tuple[str, bool], _Own] = {}
    for node in _beside(nodes):
        key = (shown(node.name), node.aggregate)
        own.setdefault(key, _Own(node.category)).spent_ns += node.self_ns
    return own


def _beside(nodes: list[Node]) -> Iterator[Node]:
    pending = [(node, False) for node in reversed(nodes)]
    while pending:
        node, is_inside = pending.pop()
        is_beside = is_inside or node.beside
        if is_beside:
            yield node
        pending += [(below, is_beside) for below in reversed(node.inside)]
