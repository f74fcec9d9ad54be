"""The server sees messages only: it runs with every access to the sites forbidden, its clients in another process."""

import multiprocessing
import sys

import pytest
from flwr.app import Context, Message, RecordDict

from cofal.federation.embedded import prepare, run_embedded
from cofal.federation.grid import InProcessGrid
from cofal.files import read_json
from cofal.rundir import RunDir


def serve(pipe, nodes):
    """The clients' process: answers each message with the real ClientApp."""
    from cofal.federation.client_app import app

    grid = InProcessGrid(app, nodes)
    while (message := pipe.recv()) is not None:
        pipe.send(grid.send_and_receive([message])[0])


class RemoteGrid(InProcessGrid):
    """A grid whose clients live in a child process; messages go through a pipe, so only what they carry gets across."""

    def __init__(self, pipe, nodes):
        super().__init__(None, nodes)
        self._pipe = pipe

    def _deliver(self, message: Message) -> Message:
        self._pipe.send(message)
        return self._pipe.recv()


@pytest.fixture
def forbidden():
    """While the list holds a path, opening anything below it (except by the child process) raises."""
    paths: list[str] = []

    def guard(event, arguments):
        if event == "open" and paths and isinstance(arguments[0], str) and any(path in arguments[0] for path in paths):
            raise AssertionError(f"the server opened {arguments[0]}")

    sys.addaudithook(guard)  # cannot be removed; without paths it does nothing
    yield paths
    paths.clear()


@pytest.mark.slow
def test_the_server_needs_nothing_but_messages(small, tmp_path, cache, forbidden):
    config = small()
    plain = run_embedded(config, tmp_path / "plain", cache)

    run = RunDir(tmp_path / "remote")
    run.path.mkdir()
    run.open(config)
    count = prepare(config, run, cache)
    nodes = {k + 2: {"site": str(run.sites / f"site-{k}")} for k in range(count)}
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, nodes), daemon=True)
    child.start()
    theirs.close()
    from cofal.federation.server_app import app

    forbidden += [str(run.sites), str(cache)]
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"run-dir": str(run.path), "sites": count}
    )
    app(RemoteGrid(ours, {node: {} for node in nodes}), context)
    forbidden.clear()
    ours.send(None)
    child.join(30)

    for file in plain.path.glob("picks/*.json"):
        assert [s["picks"] for s in read_json(file)["steps"]] == [
            s["picks"] for s in read_json(run.picks(file.stem))["steps"]
        ]
    assert plain.encoder.read_bytes() == run.encoder.read_bytes()
    assert [c["accuracy"] for c in read_json(plain.results)] == [c["accuracy"] for c in read_json(run.results)]
