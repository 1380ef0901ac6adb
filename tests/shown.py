"""Reader of the dashboards for a run that has ended, at its last metrics."""

from __future__ import annotations

from servers.dashboard import every_query
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.store.run_folders import read_run

WINDOW_S = 600
"""Every window of every query: longer than the runs of tests."""


class Shown:
    """A run that has ended, and what the dashboard shows of it at its last metrics."""

    def __init__(self, ended, servers, instance, rank=".*"):
        self.ended, self._servers = ended, servers
        newest = f'max(timestamp({names.STEPS.prometheus}{{instance="{instance}"}}))'
        # The end of the last sample, so that rates are not extrapolated beyond it.
        (self.at,) = (sample.value for sample in servers.promql(newest))
        facts = read_run(ended.folder).facts
        self.run, self.run_id = facts.name, facts.id
        self.queries = every_query(self.run, rank, f"{WINDOW_S}s")

    def ask(self, panel, legend=None, dashboard="training-run"):
        """The samples of a panel; its legend where it has several."""
        (query,) = (
            query
            for query in self.queries
            if (query.panel, query.dashboard) == (panel, dashboard)
            and legend in (None, query.legend)
        )
        return self.promql(query.expr)

    def promql(self, expr):
        """What Prometheus answers at the run's last metrics."""
        return self._servers.promql(expr, self.at)

    def figure(self, panel, legend=None, dashboard="training-run"):
        """The one number of a panel."""
        (sample,) = self.ask(panel, legend, dashboard)
        return sample.value

    def by(self, label, panel, legend=None, dashboard="training-run"):
        """The numbers of a panel by one of their labels."""
        found = self.ask(panel, legend, dashboard)
        assert len({sample.labels[label] for sample in found}) == len(found)
        return {sample.labels[label]: sample.value for sample in found}

    def has(self, name):
        """Whether the run has sent this metric."""
        return bool(self.promql(f'last_over_time({name}{{ml_run_name="{self.run}"}}[1h])'))

    def one(self, sql):
        """The only value of a query of the run folder."""
        ((value,),) = (row.values() for row in self.ended.rows(sql))
        return value


def instance_of(ended):
    (row,) = ended.rows("SELECT DISTINCT instance_id FROM processes")
    return row["instance_id"]


def arrived(servers, ended, steps):
    """Waits until Prometheus has the last metrics of a run: of its rank, then of its node.

    Those of the node, which say what was lost, are a request of their own, sent right after.
    """
    counted = f'{names.STEPS.prometheus}{{instance="{instance_of(ended)}",ml_phase="train"}}'
    wait_until(lambda: servers.promql(f"{counted} == {steps}"), what=f"{steps} steps")
    run = f'target_info{{ml_run_id="{read_run(ended.folder).facts.id}"}}'
    of_node = f"max(timestamp({names.ITEMS.prometheus}) * on (instance) group_left () {run})"
    node = f"{of_node} >= max(timestamp({counted}))"
    wait_until(lambda: servers.promql(node), what="the node's metrics of that moment")
