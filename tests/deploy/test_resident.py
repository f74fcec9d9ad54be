"""A site's process that dies in the middle of a message, and one whose server dies: the answer still arrives, once."""

import threading

import pytest
from safetensors.numpy import load_file

from cofal.deploy.resident import _IN_WORK
from cofal.learning.state import encoder_digest
from running_federation import Federation, wait_until

LONG = ["pretrain.rounds=2", "pretrain.local_epochs=12"]  # seconds of work in every message


def pretrained(made: Federation, disturb) -> str:
    """Run Phase I, call `disturb` while a message is in work at the first site; the encoder's digest."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            made.run("pretrain")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    note = made.base / made.names[0] / _IN_WORK
    answered = made.sites[made.names[0]].said("query.describe answered")
    wait_until(lambda: made.sites[made.names[0]].said("query.describe answered") > answered, 120, "the roll call")
    wait_until(note.exists, 120, "a message in work")
    disturb()
    thread.join(240)
    assert not thread.is_alive()
    assert not failures
    wait_until(lambda: not note.exists(), 60, "the last message answered")
    return encoder_digest(load_file(made.folder.encoder))


@pytest.mark.deploy
@pytest.mark.timeout(900)
def test_a_message_in_work_outlives_the_process_and_the_superlink(make_federation):
    from test_processes import child

    made = make_federation(sites=2, per_site=60, overrides=LONG)
    made.start()
    undisturbed = pretrained(made, lambda: None)
    site = made.sites["north"]

    def kill_site() -> None:
        site.kill()
        site.start()

    def kill_superlink() -> None:
        import os
        import signal

        os.kill(child(made, "flower-superlink"), signal.SIGKILL)

    for disturb in (kill_site, kill_superlink):
        made.folder.encoder.unlink()
        for leftover in (made.folder.path / "checkpoints").glob("*"):
            leftover.unlink()
        assert pretrained(made, disturb) == undisturbed
    assert site.said("taking up train again") >= 1
