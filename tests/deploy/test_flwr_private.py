"""What the deployment takes from flwr's private modules; when flwr changes, this says what moved."""

import importlib
import inspect
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict

import cofal.deploy
from cofal.deploy import fleet_api, flwr_private

SOURCE = Path(flwr_private.__file__)


@pytest.fixture(autouse=True)
def identity():
    """Flower's messages take their sender from here."""
    identity = flwr_private.TaskIdentity
    identity.run_id, identity.node_id, identity.task_id = 1, 1, 1


def test_flwr_is_the_version_the_private_imports_were_written_for():
    version = metadata.version("flwr")
    assert version.startswith("1.41."), (
        f"flwr is {version}, flwr_private.py was written for 1.41: read flwr/supernode/fleet_http_connection.py and "
        "start_client_internal.py of the new version, adapt cofal/deploy, run `make test-deploy`, then change this line"
    )


def test_every_private_name_is_where_it_was():
    text = SOURCE.read_text()
    found = re.findall(r"^from (flwr\.\S+) import (?:\(([^)]*)\)|(.*))$", text, flags=re.M)
    assert len(found) > 10
    for module, several, one in found:
        names = [name.strip() for name in (several or one).replace("\n", " ").split(",") if name.strip()]
        there = importlib.import_module(module)
        missing = [name for name in names if not hasattr(there, name)]
        assert not missing, f"flwr moved {missing} out of {module}; see flwr_private.py"


def test_no_other_module_of_the_deployment_looks_inside_flwr():
    """But superlink.py, which is a program of its own: a site must not load Flower's server."""
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    for file in Path(cofal.deploy.__file__).parent.rglob("*.py"):
        if file not in (SOURCE, SOURCE.with_name("superlink.py")):
            used = set(re.findall(r"^\s*(?:from|import) (flwr[.\w]*)", file.read_text(), flags=re.M))
            assert used <= public, f"{file.name} imports {used - public}; such imports belong into flwr_private.py"


def test_the_grid_of_a_serverapp_has_what_an_exchange_uses_of_it():
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.superlink.grid.http_grid import HttpGrid

    for kind, names in (
        (HttpGrid, {"_runtime_client", "run", "push_messages"}),
        (RuntimeHttpClient, {"PullMessages", "PullObject", "ConfirmMessageReceived"}),
    ):
        missing = {name for name in names if not hasattr(kind, name)}
        assert not missing, f"flwr's {kind.__name__} has no {missing} any more; see cofal/deploy/exchange.py"
    for kind, names in (
        (HttpGrid, {"node", "_addr", "_cert"}),
        (RuntimeHttpClient.__mro__[1], {"_client"}),
        (httpx.Client, {"_transport"}),
    ):
        source = inspect.getsource(kind.__init__)
        missing = {name for name in names if f"self.{name} = " not in source and f"self.{name}: " not in source}
        assert not missing, f"{kind.__name__} sets no {missing} any more; see cofal/deploy/exchange.py"


def test_the_superlink_takes_the_rest_of_an_answer_without_its_session():
    """What a site that was killed while it handed in an answer relies on; tests/deploy/test_hand_in.py does it."""
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    source = inspect.getsource(SqlCoreState.store_object)
    assert "if not session_id:" in source, "read flwr's store_object: does it still find the session by the object?"


def test_arrays_are_cut_into_parts_as_large_as_we_say():
    told = "import cofal.deploy, flwr.common.constant as c; print(c.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert int(done.stdout) == cofal.deploy.PART


def test_requests_are_signed_as_flwr_s_own_client_signs_them():
    from flwr.supercore.protobuf.client import ProtobufRequestContext
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key = ec.generate_private_key(ec.SECP384R1())
    request = httpx.Request("POST", "https://localhost/v1/fleet/pull-messages")
    context = ProtobufRequestContext(rpc_method="", message=None, request=request)
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda _: httpx.Response(200))
    assert {fleet_api.PUBLIC_KEY, fleet_api.SIGNATURE, fleet_api.TIMESTAMP} <= set(request.headers)


def test_a_delivery_survives_its_way_to_disk_and_back():
    message = Message(RecordDict({"config": ConfigRecord({"a": 1})}), dst_node_id=7, message_type="query.describe")
    message.metadata.__dict__["_message_id"] = message.object_id
    with flwr_private.no_object_id_recompute():
        tree = flwr_private.get_object_tree(message)
    plain = flwr_private.remove_content_from_message(message)
    delivery = fleet_api.Delivery(plain, tree.SerializeToString())
    again = fleet_api.Delivery.from_bytes(delivery.to_bytes())
    assert again.tree == delivery.tree
    assert again.envelope.metadata.message_id == message.metadata.message_id
    assert fleet_api.Delivery.from_bytes(b"") is None


class Shelf(fleet_api.FleetConnection):
    """A connection whose objects come from a dict instead of a server."""

    def __init__(self, contents: dict[str, bytes], most: int):
        self.contents, self._most, self.node = contents, most, 7

    def _call(self, path, request, kind, timeout=30.0):
        assert path == "pull-object"
        found = self.contents.get(request.object_id)
        return kind(object_found=found is not None, object_available=found is not None, object_content=found or b"")


def packed(most: int = 1 << 30) -> tuple[Shelf, fleet_api.Delivery, Message]:
    from cofal.federation import messages as m

    content = m.pack(arrays={"w": np.arange(1000, dtype=np.float32)}, config={"a": "b"})
    message = Message(content, dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    with flwr_private.no_object_id_recompute():
        tree = flwr_private.get_object_tree(message).SerializeToString()
        objects = {name: item.deflate() for name, item in flwr_private.get_all_nested_objects(message).items()}
    return Shelf(objects, most), fleet_api.Delivery(flwr_private.remove_content_from_message(message), tree), message


def test_content_arrives_whole_and_a_changed_or_too_large_one_is_refused():
    from cofal.errors import CofalError, UserError
    from cofal.federation import messages as m

    shelf, delivery, _ = packed()
    arrays = m.arrays_of(shelf.content(delivery).content)
    np.testing.assert_array_equal(arrays["w"], np.arange(1000, dtype=np.float32))
    shelf, delivery, _ = packed(most=2000)
    with pytest.raises(UserError, match="larger than"):
        shelf.content(delivery)
    shelf, delivery, _ = packed()
    name = max(shelf.contents, key=lambda name: len(shelf.contents[name]))
    shelf.contents[name] = shelf.contents[name][:-1]
    with pytest.raises(CofalError, match="changed on its way"):
        shelf.content(delivery)
