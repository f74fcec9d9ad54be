"""A site that is killed at each step of taking a question and handing in an answer: the round goes on in seconds."""

import threading
import time
from pathlib import Path

import pytest

from faulty_federation import Faulty, undisturbed
from running_federation import Running, wait_until

# Where the process is gone: the server has given the question away, and nobody has a note of it; the answer is
# announced, and the server waits for it; a part of it is there; all of it is there, and nobody was told.
DEATHS = ["pull-messages 1", "push-messages 1", "push-object 1", "push-object 4", "confirm-message-received 1"]
ROUNDS = 2
GOES_ON = 60.0  # seconds from a restart to the next step; Flower alone would wait three minutes
DYING = Path(__file__).parent.parent / "dying_site"


@pytest.mark.deploy
@pytest.mark.timeout(600)
def test_a_site_killed_at_any_step_of_an_answer_hands_it_in_once(make_federation, tmp_path):
    made = make_federation(sites=2, per_site=30, overrides=[f"pretrain.rounds={ROUNDS}"])
    expected = undisturbed(made, ["pretrain"], tmp_path / "peace")
    order = tmp_path / "death"
    name = made.names[0]
    log = made.sites[name].log
    site = made.sites[name] = Running(
        made.sites[name].arguments, log, env={"PYTHONPATH": str(DYING), "COFAL_TEST_DEATH": str(order)}
    )
    made.start()
    failures: list[BaseException] = []

    def pretrain() -> None:
        try:
            made.run("pretrain")
        except BaseException as error:
            failures.append(error)

    order.write_text(DEATHS[0].replace("1", "2"))  # the first question is who it is
    thread = threading.Thread(target=pretrain)
    thread.start()
    for death, following in zip(DEATHS, [*DEATHS[1:], "never 1"]):
        wait_until(lambda: not site.alive or failures, GOES_ON, f"gone at {death}")
        assert not failures
        order.write_text(following)
        began, connected = time.monotonic(), site.said("connected as node")
        site.start()
        wait_until(lambda connected=connected: site.said("connected as node") > connected, 120, "connected again")
    thread.join(GOES_ON)
    assert not thread.is_alive()
    print(f"{time.monotonic() - began:.1f} s from the last restart to the end of the phase")
    assert not failures
    assert Faulty(made).outcome() == expected
    assert site.said("handing in the answer to train") == len(DEATHS) - 1
    assert site.said("train answered") == ROUNDS  # no work was done twice
