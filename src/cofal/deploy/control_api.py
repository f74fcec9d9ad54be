"""Flower's Control API on loopback: what the coordinator's own commands ask of the SuperLink."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from cofal.deploy import flwr_private as fl
from cofal.deploy.flower import loopback_unproxied
from cofal.deploy.server_folder import ServerFolder
from cofal.errors import CofalError

_IN_USE = "already in use"


class Away(CofalError):
    """The SuperLink does not answer: it is starting, or down."""


class Unreached(Away):
    """Nobody listens there: what was asked was not even sent."""


@dataclass(frozen=True)
class RunState:
    """Where a run is: `status` pending, starting, running or finished; `outcome` completed, failed, stopped or ''."""

    status: str
    outcome: str
    details: str


@dataclass(frozen=True)
class Node:
    """A site as the SuperLink sees it: its node id, its enrolled name, whether its heartbeats arrive, since when."""

    node: int
    name: str
    online: bool
    changed_at: str  # ISO 8601, UTC: when it came or went


class Control:
    """Requests to the SuperLink; each raises Away while it cannot be reached."""

    def __init__(self, server: ServerFolder):
        address = f"127.0.0.1:{server.settings().control_port}"
        authority = server.authority.read_bytes()
        os.environ["NO_PROXY"] = loopback_unproxied()  # flwr's client takes its proxies from the environment
        self._client = fl.ControlHttpClient.from_server_address(address, False, authority, interceptors=[])

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def register(self, key: ec.EllipticCurvePublicKey, name: str) -> None:
        """Make a site's key known; one that is known already stays so."""
        request = fl.RegisterNodeRequest(public_key=fl.public_key_to_bytes(key), name=name)
        try:
            with _told():
                self._client.RegisterNode(request)
        except CofalError as error:
            if isinstance(error, Away) or _IN_USE not in str(error):
                raise

    def nodes(self) -> list[Node]:
        """All registered sites, by name."""
        with _told():
            found = self._client.ListNodes(fl.ListNodesRequest()).nodes_info
        return sorted(
            (
                Node(
                    int(each.node_id),
                    str(each.name),
                    each.status == "online",
                    str(each.last_activated_at if each.status == "online" else each.last_deactivated_at),
                )
                for each in found
            ),
            key=lambda node: node.name,
        )

    def start(self, app: Path, options: Mapping[str, str | int | float | bool]) -> int:
        """Start a run of the app in a folder; its id."""
        content = fl.build_fab_from_disk(app)
        fab = fl.Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = fl.StartRunRequest(
            fab=fl.fab_to_proto(fab), override_config=fl.user_config_to_proto(dict(options)), federation="", app_spec=""
        )
        with _told():
            return int(self._client.StartRun(request).run_id)

    def state(self, run: int) -> RunState:
        with _told():
            status = self._client.ListRuns(fl.ListRunsRequest(run_id=run)).run_dict[run].status
        return RunState(str(status.status), str(status.sub_status), str(status.details))

    def under_way(self) -> list[int]:
        """Runs whose ServerApp was started and has not ended, as far as the SuperLink knows."""
        with _told():
            found = self._client.ListRuns(fl.ListRunsRequest()).run_dict
        return [int(run) for run, each in found.items() if each.status.status in ("starting", "running")]

    def lines(self, run: int, after: float = 0.0) -> Iterator[tuple[float, str]]:
        """What the run's ServerApp says, as it comes, with its time; ends with the run."""
        with _told():
            for part in self._client.StreamLogs(fl.StreamLogsRequest(run_id=run, after_timestamp=after)):
                yield float(part.latest_timestamp), str(part.log_output)

    def stop(self, run: int) -> None:
        with _told():
            self._client.StopRun(fl.StopRunRequest(run_id=run))


@contextmanager
def _told() -> Iterator[None]:
    """Turn the failures of HTTP into ours."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        found = fl.FlowerError.from_json(error.response.text)
        raise CofalError(found.message if found else f"the SuperLink answers {error.response.status_code}") from None
    except httpx.TransportError as error:
        kind = Unreached if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)) else Away
        raise kind(f"the SuperLink cannot be reached ({error or type(error).__name__})") from None
