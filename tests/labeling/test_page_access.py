"""Who gets at the annotators' page and what it gives away: hosts, origins, logins, pictures, headers."""

from __future__ import annotations

import datetime
import io
import ipaddress
import re
import ssl
from importlib.resources import files

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from PIL import Image
from starlette.testclient import TestClient

from cofal.errors import UserError
from cofal.labeling.web.annotators import FILE, Annotators
from cofal.labeling.web.brake import WINDOW, Brake, TooMany
from cofal.labeling.web.serve import Page
from cofal.labeling.web.sessions import Sessions
from page_site import make_site

IDS = [f"ward/{number:02d}.png" for number in range(8)]


@pytest.fixture
def folder(tmp_path):
    make_site(tmp_path / "north", ids=IDS, asked=IDS[:4], known={IDS[6]: 1})
    return tmp_path / "north"


@pytest.fixture
def page(folder):
    return Page(folder)


def browser_of(page, *, enter=True, address="127.0.0.1"):
    """A client of the page as a browser is one: it keeps cookies, and follows no redirect by itself."""
    origin = page.url.split("/?")[0].rstrip("/")
    client = TestClient(page.app, base_url=origin, follow_redirects=False, client=(address, 5000))
    if enter:
        assert client.get(page.url).status_code == 303
        client.headers["X-CSRF"] = client.get("/api/session").json()["csrf"]
    return client


def login(page, name, token, address="127.0.0.1"):
    client = browser_of(page, enter=False, address=address)
    return client, client.post("/api/login", json={"name": name, "token": token})


def first_key(client):
    return client.get("/api/next").json()["item"]["key"]


# --- names under which it may be asked for


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}@evil", "a:b:c", "", "[::1"],
)
def test_another_host_name_is_refused_whatever_the_cookie(page, host):
    client = browser_of(page)
    port = client.base_url.port
    response = client.get("/api/next", headers={"Host": host.format(port=port)})
    assert response.status_code == 421
    assert client.get("/api/next", headers={"Host": f"localhost:{port}"}).status_code == 200


# --- what other pages could send


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-CSRF": ""}, 403),
        ({"X-CSRF": "0" * 64}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Length": "70000"}, 413),
        ({}, 200),
    ],
)
def test_only_the_page_itself_can_change_something(page, headers, status):
    client = browser_of(page)
    body = {"key": first_key(client), "label": "cat", "seconds": 1.0}
    assert client.post("/api/label", json=body, headers=headers).status_code == status
    assert len(page.store.labels()) == (status == 200)


def test_methods_other_than_get_and_post_are_refused(page):
    client = browser_of(page)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert client.request(method, "/api/label").status_code == 405


# --- who may look


def test_nothing_is_told_without_a_session(page):
    stranger = browser_of(page, enter=False)
    key = first_key(browser_of(page))
    for path in (
        f"/image/{key}.png",
        f"/full/{key}.png",
        "/api/session",
        "/api/next",
        f"/api/item/{key}",
        f"/api/around/{key}",
        "/api/review",
        "/api/progress",
        "/api/disagreements",
    ):
        assert stranger.get(path).status_code == 401, path
    for path in ("label", "skip", "later", "undo", "resolve", "logout"):
        assert stranger.post(f"/api/{path}", json={}).status_code in (401, 422), path
    assert stranger.get("/").headers["location"] == "/login"
    assert stranger.get("/?key=" + "0" * 32).headers["location"] == "/login"
    assert stranger.get("/?key=é").status_code == 303
    for path in ("/docs", "/redoc", "/openapi.json", "/static/../page.html", "/static/..%2fserve.py", "/static/app.py"):
        assert stranger.get(path).status_code == 404, path


def test_an_altered_or_foreign_cookie_is_worth_nothing(page, folder, tmp_path):
    client = browser_of(page)
    (name,) = client.cookies
    content, _, signature = client.cookies[name].partition(".")
    make_site(tmp_path / "south", ids=IDS, asked=IDS[:4])
    other = browser_of(Page(tmp_path / "south"))
    foreign = next(iter(other.cookies.values()))
    for cookie in (f"{content[:-4]}AAAA.{signature}", content, f"{content}.", "", ".", "é.é", foreign):
        client.cookies.clear()
        assert client.get("/api/next", headers={"Cookie": f"{name}={cookie}".encode()}).status_code == 401, cookie


def test_a_restart_keeps_the_session_and_the_keys(page, folder):
    client = browser_of(page)
    key, cookie = first_key(client), next(iter(client.cookies.values()))
    again = Page(folder)
    later = browser_of(again, enter=False)
    later.cookies.set(f"cofal-{later.base_url.port}", cookie)
    assert first_key(later) == key


# --- pictures


def test_only_what_was_asked_or_known_has_a_picture(page):
    client = browser_of(page)
    keys = {card["sample"]: card["key"] for card in client.get("/api/review").json()["items"]}
    assert sorted(keys) == IDS[:4]
    for key in keys.values():
        response = client.get(f"/image/{key}.png")
        assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
    near = {near["key"] for near in client.get(f"/api/around/{keys[IDS[0]]}").json()["neighbours"]}
    assert len(near) == 1  # the image labelled before
    assert client.get(f"/image/{near.pop()}.png").status_code == 200
    for sample in (IDS[5], IDS[7]):
        assert client.get(f"/image/{page.desk.pictures.key(sample)}.png").status_code == 409


@pytest.mark.parametrize(
    "path",
    ["..%2f..%2fsite.toml", "../site.toml", "ward/00.png", "ward%2f00.png", "%00", "images.npy", "a" * 500, "🙂"],
)
def test_ids_and_paths_are_no_keys(page, path):
    client = browser_of(page)
    assert client.get(f"/image/{path}.png").status_code in (404, 409)
    assert client.get(f"/api/item/{path}").status_code in (404, 409)


def test_originals_are_shown_in_full_size_and_nothing_beside_them(tmp_path):
    scans = tmp_path / "scans"
    scans.mkdir()
    ids = ["a.png", "../secret.png", str(tmp_path / "secret.png"), "gone.png", "broken.png", "x" * 300, "nul\0.png"]
    make_site(tmp_path / "north", ids=ids, asked=ids)
    Image.new("RGB", (90, 60), "red").save(scans / "a.png")
    Image.new("RGB", (70, 70), "blue").save(tmp_path / "secret.png")
    (scans / "broken.png").write_bytes(b"no image")
    page = Page(tmp_path / "north", originals=scans)
    client = browser_of(page)

    def size(route, sample):
        content = client.get(f"/{route}/{page.desk.pictures.key(sample)}.png").content
        return Image.open(io.BytesIO(content)).size

    assert size("full", "a.png") == (90, 60)
    assert size("image", "a.png") == (8, 8)
    for sample in ids[1:]:
        assert size("full", sample) == (8, 8), sample
    with pytest.raises(UserError, match="--images"):
        Page(tmp_path / "north", originals=tmp_path / "nowhere")


# --- what every answer bears


def test_headers_and_markup_leave_no_room_for_foreign_script(page):
    client = browser_of(page)
    key = first_key(client)
    for path in ("/", "/login", "/static/main.js", f"/image/{key}.png", "/api/next", "/nowhere"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
    refused = client.get("/", headers={"Host": "evil"})
    assert "content-security-policy" in refused.headers
    web = files("cofal.labeling.web")
    for name in ("page.html", "login.html"):
        text = web.joinpath(name).read_text()
        assert not re.search(r"<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=|javascript:|https?://", text)
    for file in web.joinpath("static").iterdir():
        text = file.read_text()
        assert not re.search(
            r"innerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://(?!www\.w3\.org/2000/svg)", text
        ), file


def test_bodies_that_are_no_answers_change_nothing(page):
    client = browser_of(page)
    key = first_key(client)
    for body in (
        {},
        {"key": key},
        {"key": key, "label": 3, "seconds": 1},
        {"key": key, "label": "cat", "seconds": -1},
        {"key": key, "label": "cat", "seconds": 1, "annotator": "ben"},
        [],
        {"key": ["x"], "label": "cat", "seconds": 1},
    ):
        assert client.post("/api/label", json=body).status_code == 422, body
    assert client.post("/api/label", json={"key": key, "label": "no class", "seconds": 1}).status_code == 409
    assert client.post("/api/skip", json={"key": key, "reason": "bored", "seconds": 1}).status_code == 409
    for body in (
        b"{",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"9" * 60_000,
        b"\xff\xfe",
        b'{"key": "\\ud800", "label": "cat", "seconds": 1}',
        b'{"key": "a", "label": "\\ud800", "seconds": 1}',
        b'{"\\ud800": 1}',
        b'{"key": "a", "label": "cat", "seconds": 1e400}',
        b'{"name": "ana", "token": "\\ud800"}',
        b'{"name": "\\ud800", "token": "x"}',
    ):
        for path in ("label", "skip", "later", "undo", "resolve", "login"):
            response = client.post(f"/api/{path}", content=body, headers={"Content-Type": "application/json"})
            assert response.status_code in (400, 422), (path, body[:40])
            assert len(response.content) < 300
    for page_number in ("99999999999999999999", str(2**63), "-1", f"-{10**30}"):
        assert client.get(f"/api/review?page={page_number}").status_code == 200
    assert page.store.labels() == {}
    assert page.store.skipped() == {}


def test_two_servers_of_one_site_hand_out_different_images(folder):
    one, other = Page(folder).desk, Page(folder).desk
    first, second = one.next("ana")["item"], other.next("ben")["item"]
    assert first["sample"] != second["sample"]
    with pytest.raises(UserError, match="ana has this image open"):
        other.item("ben", first["key"])
    one.label("ana", first["key"], "cat", 1.0)
    one.item("ana", first["key"])
    with pytest.raises(UserError, match="ana has this image open"):
        other.item("ben", first["key"])
    other.label("ben", second["key"], "dog", 1.0)
    assert one.store.labels() == {first["sample"]: "cat", second["sample"]: "dog"}


# --- annotators with tokens


def test_a_token_is_kept_as_a_hash_and_lets_its_annotator_in(folder):
    annotators = Annotators(folder)
    token = annotators.add("ana")
    assert token not in (folder / FILE).read_text()
    assert (folder / FILE).stat().st_mode & 0o077 == 0
    page = Page(folder)
    assert "key=" not in page.url
    client, response = login(page, "ana", token)
    assert response.status_code == 200
    assert client.get("/api/session").json()["annotator"] == "ana"
    for name, wrong in (("ana", token[:-1]), ("ana", ""), ("ben", token), ("", "")):
        assert login(page, name, wrong)[1].status_code == 403


def test_with_tokens_in_use_the_link_is_closed_and_local_sessions_end(page, folder):
    client = browser_of(page)
    Annotators(folder).add("ana")
    assert client.get("/api/next").status_code == 401
    assert browser_of(page, enter=False).get(page.url).headers["location"] == "/login"


def test_where_others_can_reach_the_page_the_link_opens_nothing(folder):
    local = Sessions(folder, Annotators(folder), "keeper")
    entered = local.by_link(local.link_key)
    assert local.read(entered).annotator == "keeper"
    public = Sessions(folder, Annotators(folder), None)  # also after its last annotator was removed
    assert public.by_token
    assert public.by_link(local.link_key) is None
    assert public.by_link(public.link_key) is None
    assert public.read(entered) is None


def test_a_removed_annotator_and_an_old_token_are_out_at_once(folder):
    annotators = Annotators(folder)
    annotators.add("keeper")
    token = annotators.add("ana")
    page = Page(folder)
    client, _ = login(page, "ana", token)
    assert client.get("/api/next").status_code == 200
    new = annotators.add("ana")
    assert client.get("/api/next").status_code == 401
    assert login(page, "ana", token)[1].status_code == 403
    client, _ = login(page, "ana", new)
    annotators.remove("ana")
    assert client.get("/api/next").status_code == 401
    with pytest.raises(UserError, match="ana"):
        annotators.remove("ana")


def test_guessing_is_slowed_down_by_address_and_by_name(folder):
    annotators = Annotators(folder)
    token = annotators.add("ana")
    annotators.add("ben")
    page = Page(folder)
    answers = [login(page, "ana", "guess")[1].status_code for _ in range(6)]
    assert answers == [403] * 5 + [429]
    response = login(page, "ana", token)[1]  # the right one has to wait as well
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= WINDOW
    assert login(page, "ana", token, address="127.0.0.2")[1].status_code == 200  # a colleague elsewhere does not
    for number in range(15):
        assert login(page, "ana", "guess", address=f"127.0.1.{number // 4}")[1].status_code == 403
    assert login(page, "ana", token, address="127.0.0.3")[1].status_code == 429  # 20 tries at one name, from anywhere


def test_the_brake_opens_with_time():
    now = [0.0]
    brake = Brake(lambda: now[0])
    keys = {"x": 3}
    for moment in (0.0, 10.0, 20.0):
        now[0] = moment
        brake.check(keys)
        brake.failed(keys)
    with pytest.raises(TooMany) as told:
        brake.check(keys)
    assert told.value.seconds == 40
    now[0] = 60.5
    brake.check(keys)
    brake.failed(keys)
    with pytest.raises(TooMany):
        brake.check(keys)


# --- beyond loopback


@pytest.fixture
def certificate(tmp_path):
    """(certificate, key) files for this machine's loopback, signed by itself."""

    def make(*names):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "page")])
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        (tmp_path / "page.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        (tmp_path / "page.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return {"certificate": tmp_path / "page.crt", "private_key": tmp_path / "page.key"}

    return make


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "clinic.example"])
def test_another_address_demands_tls_and_tokens(folder, host, certificate):
    tls = certificate(x509.DNSName("clinic.example"))
    with pytest.raises(UserError, match="--cert and --key"):
        Page(folder, host=host)
    with pytest.raises(UserError, match="cofal client annotator add"):
        Page(folder, host=host, **tls)
    with pytest.raises(UserError, match="both --cert and --key"):
        Page(folder, host=host, certificate=tls["certificate"])


def test_a_certificate_without_names_is_told(folder, certificate):
    with pytest.raises(UserError, match="subjectAltName"):
        Page(folder, **certificate())
    with pytest.raises(UserError, match="cannot read the certificate"):
        Page(folder, certificate=folder / "nowhere", private_key=folder / "nowhere")


def test_over_tls_the_cookie_is_secure_and_the_names_are_the_certificates(folder, certificate, serve):
    token = Annotators(folder).add("ana")
    tls = certificate(x509.DNSName("*.clinic.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    page = serve(folder, **tls)
    port = httpx.URL(page.url).port
    trusted = ssl.create_default_context(cafile=str(tls["certificate"]))
    with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted) as client:
        response = client.post("/api/login", json={"name": "ana", "token": token})
        assert response.status_code == 200
        assert re.match(r"__Host-cofal-\d+=.*HttpOnly.*SameSite=strict; Secure", response.headers["set-cookie"])
        assert "strict-transport-security" in response.headers
        assert client.get("/api/next").json()["item"]["sample"] == IDS[0]
        for name, status in (("north.clinic.example", 200), ("a.b.clinic.example", 421), ("clinic.example", 421)):
            assert client.get("/api/door", headers={"Host": f"{name}:{port}"}).status_code == status
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{port}/")


def test_a_port_in_use_is_told(folder, page):
    with pytest.raises(UserError, match="--port"):
        Page(folder, port=httpx.URL(page.url).port)


def test_a_simulated_site_and_one_without_classes_are_told(tmp_path):
    make_site(tmp_path / "blank", ids=IDS, asked=[], classes=[])
    with pytest.raises(UserError, match="class"):
        Page(tmp_path / "blank")
    with pytest.raises(UserError, match="nowhere"):
        Page(tmp_path / "nowhere")
