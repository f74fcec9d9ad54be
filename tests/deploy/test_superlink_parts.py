"""The SuperLink as we start it answers every request as Flower's own does, the refusals above all."""

import asyncio
import inspect
import sqlite3

import httpx
import pytest
from flwr.supercore import sql_mixin
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink import main as superlink_main
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.middleware import Middleware

from cofal.deploy import superlink
from cofal.deploy.server_folder import ServerFolder, ServerSettings, create_server, deployment_config

PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}


@pytest.fixture(scope="module")
def apps():
    """Flower's app with its own middleware, and with ours."""
    layers = superlink_main._get_middleware
    plain = superlink_main.create_app()
    superlink_main._get_middleware = lambda: superlink.lean(layers())
    try:
        return plain, superlink_main.create_app()
    finally:
        superlink_main._get_middleware = layers


def ask(app, path, **request):
    async def answer():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://superlink") as client:
            return await client.post(path, **request)

    return asyncio.run(answer())


ROUTES = sorted(path for _, path in PROTOBUF_REQUEST_TYPES)


@pytest.mark.parametrize("path", [*ROUTES, "/", "/health", "/v1/fleet", "/v1/fleetx", "/V1/FLEET/pull-messages"])
def test_who_is_refused_by_flower_is_refused_in_the_same_words(apps, path):
    signed = PROTOBUF | {"flwr-public-key": "QUJD", "flwr-signature": "!"}
    for headers in (PROTOBUF, {}, signed):
        for body in (b"", b"\xff" * 200_000):
            plain, lean = (ask(app, path, content=body, headers=headers) for app in apps)
            assert lean.status_code == plain.status_code
            if plain.is_error:  # what is answered may hold the time of day
                assert lean.content == plain.content
                assert dict(lean.headers) == dict(plain.headers)


def test_a_site_without_a_signature_is_refused(apps):
    for app in apps:
        assert ask(app, "/v1/fleet/pull-object", headers=PROTOBUF).status_code == httpx.codes.UNAUTHORIZED


def test_no_layer_is_lost_and_the_order_is_flower_s():
    layers = superlink_main._get_middleware()
    kinds = [each.cls for each in layers]
    assert set(superlink.CONCERNS) | set(superlink.SWITCHES) <= set(kinds), "flwr has other middleware now"
    made = superlink.lean(layers)
    assert made[0].cls is superlink.WholeBody
    found = [each.args[1].cls if each.cls is superlink.OnlyFor else each.cls for each in made[1:]]
    assert found == [kind for kind in kinds if kind not in superlink.SWITCHES]


def test_layers_that_are_passed_by_would_have_done_nothing():
    """Read in Flower's source; when one of these fails, look what the layer does now."""
    for kind, path in superlink.CONCERNS.items():
        source = inspect.getsource(kind.dispatch)
        assert ("_is_control_" in source) if path == "/v1/control/" else (f'startswith("{path}")' in source), kind
    assert 'os.getenv("FLWR_TRACING_ENABLED") != "1"' in inspect.getsource(superlink.RuntimeTracingMiddleware.dispatch)
    assert "if plugin is None" in inspect.getsource(superlink.FleetEventLogMiddleware.dispatch)
    program = inspect.getmodule(superlink.flower_superlink)
    assert 'getattr(args, "enable_event_log", False)' in inspect.getsource(program)


@pytest.mark.parametrize("switch", superlink.SWITCHES.values())
def test_what_flower_is_told_to_do_is_done(monkeypatch, switch):
    if switch.startswith("--"):
        monkeypatch.setattr("sys.argv", ["superlink", switch])
    else:
        monkeypatch.setenv(switch, "1")
    made = superlink.lean(superlink_main._get_middleware())
    wanted = next(kind for kind, name in superlink.SWITCHES.items() if name == switch)
    assert wanted in [each.cls for each in made]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans())
def test_a_body_arrives_whole_or_not_at_all(pieces, cut_off):
    sent = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    sent.append({"type": "http.disconnect"} if cut_off else {"type": "http.request", "body": b"!", "more_body": False})
    seen = []

    async def app(scope, receive, send):
        seen.append(await receive())

    async def receive():
        return sent.pop(0)

    asyncio.run(superlink.WholeBody(app)({"type": "http"}, receive, None))
    whole = {"type": "http.request", "body": b"".join(pieces) + b"!", "more_body": False}
    assert seen == ([] if cut_off else [whole])


def test_other_paths_pass_a_layer_by():
    async def app(scope, receive, send):
        scope["seen"].append("app")

    class Layer:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            scope["seen"].append("layer")
            await self.app(scope, receive, send)

    layer = superlink.OnlyFor(app, "/v1/fleet/", Middleware(Layer))
    for path, expected in (("/v1/fleet/x", ["layer", "app"]), ("/v1/control/x", ["app"])):
        scope = {"type": "http", "path": path, "seen": []}
        asyncio.run(layer(scope, None, None))
        assert scope["seen"] == expected


def test_flower_s_database_can_be_told_what_we_tell_it():
    assert ("journal_mode", "WAL") in sql_mixin.SQLITE_PRAGMAS
    source = inspect.getsource(sql_mixin._set_sqlite_pragmas)
    assert "SQLITE_PRAGMAS" in source


def test_a_new_server_has_a_database_of_large_pages_that_others_cannot_read(tmp_path):
    made: ServerFolder = create_server(
        tmp_path / "server", ServerSettings(hosts=["localhost"]), deployment_config("digits-deployment", [])
    )
    with sqlite3.connect(made.database) as database:
        assert database.execute("PRAGMA page_size").fetchone() == (65536,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert made.database.stat().st_mode & 0o777 == 0o600
