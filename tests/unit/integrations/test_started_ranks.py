"""A script that is started again knows its run and its rank."""

from __future__ import annotations

from otel_mlperf.integrations.start_request import Autostart
from otel_mlperf.integrations.started_ranks import script_rank
from otel_mlperf.recorder.lifecycle.run_identity import Identity, give_identity, take_identity


def test_rank_of_a_script_that_is_started_again():
    """By the node and its place there, as Lightning says them; run and restart are as told."""
    told = Autostart("this", "fit", None, run_id="7f", restart=2, ranks_per_node=4)
    environ = {"NODE_RANK": "1", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}

    assert script_rank(told, environ) == Identity(
        run_id="7f", rank=7, local_rank=3, world_size=8, restart=2
    )


def test_identity_that_is_given_is_taken_once():
    """The run after it is this process's own."""
    who = Identity(run_id="7f", rank=1, world_size=2)
    give_identity(who)

    assert take_identity("", {}) == who
    assert take_identity("9a", {}).run_id == "9a"
