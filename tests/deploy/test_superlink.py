"""A SuperLink that dies in the middle of a round, and again: it is started again, and the phase goes on by itself."""

import os
import signal
import threading
import time

import pytest

from cofal.deploy.resident import _IN_WORK
from faulty_federation import Faulty, undisturbed
from running_federation import wait_until

PATIENCE = 20.0  # seconds; a SuperLink needs that long to start on a busy machine only
LONG = ["pretrain.rounds=3", "pretrain.local_epochs=6"]  # seconds of work in every message


@pytest.mark.deploy
@pytest.mark.timeout(900)
def test_a_phase_outlives_the_superlink(make_federation, tmp_path):
    from test_processes import child

    made = make_federation(sites=2, per_site=40, overrides=LONG)
    expected = undisturbed(made, ["pretrain"], tmp_path / "peace")
    made.start()
    site, failures = made.sites[made.names[0]], []

    def pretrain() -> None:
        try:
            made.run("pretrain")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=pretrain)
    thread.start()
    wait_until(lambda: site.said("query.describe answered") > 0, 120, "the roll call")
    away = []

    def kill_superlink() -> None:
        listening, began = made.server.said("Uvicorn running"), time.monotonic()
        os.kill(child(made, "cofal.deploy.superlink"), signal.SIGKILL)
        wait_until(lambda: made.server.said("Uvicorn running") > listening, 240, "the SuperLink up again")
        away.append(time.monotonic() - began)

    # While the sites work, and while an answer has just arrived.
    wait_until((made.base / made.names[0] / _IN_WORK).exists, 120, "a message in work")
    answered = site.said("train answered")
    kill_superlink()
    wait_until(lambda: site.said("train answered") > answered or failures, 120, "an answer after the first death")
    if not failures:
        kill_superlink()
    thread.join(240)
    assert not thread.is_alive()
    if failures:  # Flower gives up a run whose heartbeat was away for about half a minute
        assert max(away) > PATIENCE, failures
        assert "heartbeat" in str(failures[0])
        made.run("pretrain")
    assert Faulty(made).outcome() == expected
