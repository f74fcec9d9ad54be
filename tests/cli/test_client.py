"""`cofal client ledger`: the account of a site for people and machines, and the exit status of a broken chain."""

import json

import pytest

from cofal.federation.site_settings import SiteSettings, create_site, read_settings
from cofal.privacy.answered import admit
from cofal.privacy.ledger import FILE, HEAD, START, Ledger
from cofal.privacy.secure_sum import public_identity, site_identity

WEIGHT = {"name": "weight", "dtype": "float32", "shape": [500], "bytes": 2000}


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "north"
    folder.mkdir()
    ledger = Ledger(folder / FILE)
    ledger.append(phase="query.describe", kind="description", fields=[{**WEIGHT, "bytes": 120}])
    for _ in range(3):
        ledger.append(phase="train [red]head", kind="model", fields=[WEIGHT])
    for number in range(12):
        ledger.append(phase="query.embed", kind="raw", refused=f"policy.allow forbids request [b]{number}")
    return folder


def test_the_table_shows_rows_totals_refusals_and_the_head(cofal, site):
    status, out, err = cofal("client", "ledger", site)
    assert (status, err) == (0, "")
    rows = {
        line.split("│")[1].strip(): [c.strip() for c in line.split("│")[2:6]]
        for line in out.splitlines()
        if "│" in line
    }
    assert rows["train [red]head"][:3] == ["model", "3", "6.0\u00a0kB"]  # a server's text is no markup
    assert rows["in all"][1:3] == ["4", "6.1\u00a0kB"]
    assert "Not sent: 12, the last 10" in out
    assert "request [b]11" in out
    assert "request [b]1\n" not in out
    head = json.loads((site / FILE).read_text().splitlines()[-1])["hash"]
    assert out.splitlines()[-1] == f"Chain verified: 16 lines, head {head}"


def test_json_holds_the_same(cofal, site):
    status, out, _ = cofal("client", "ledger", site, "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["site"], told["verified"], told["broken"], told["lines"]) == ("north", True, "", 16)
    assert (told["messages"], told["bytes"], len(told["refused"])) == (4, 6120, 12)
    assert [(row["phase"], row["kind"], row["messages"], row["bytes"]) for row in told["rows"]] == [
        ("query.describe", "description", 1, 120),
        ("train [red]head", "model", 3, 6000),
    ]


def test_questions_are_listed_on_request_and_cannot_steer_the_terminal(cofal, site):
    asked = {"method": "typiclust", "kind": "nearest", "numbers": {"depth": 8, "\x1b[2J": 1}}
    more = {"arrays": {"centers": [12, 64]}, "sha256": "ab12cd34" * 8}
    ledger = Ledger(site / FILE)
    ledger.append(phase="query.aggregate", kind="aggregate", parameters={**asked, **more})
    ledger.append(phase="query.aggregate", kind="aggregate", parameters=asked, refused="no \x1b[2J")
    masked = {**asked, "kind": "nearest sums", "numbers": {}, "session": "main-1", "round": 0}
    ledger.append(phase="query.aggregate", kind="secure-sum", parameters=masked)
    assert "nearest" not in cofal("client", "ledger", site)[1]
    _, out, _ = cofal("client", "ledger", site, "--asked")
    shown = [line[21:] for line in out.splitlines() if "nearest" in line]
    assert shown == [
        "typiclust nearest: depth 8, ?[2J 1; centers 12×64 (ab12cd34)",
        "typiclust nearest: depth 8, ?[2J 1; not answered",
        "typiclust nearest sums: masked",
    ]
    assert "\x1b[2J" not in out
    told = json.loads(cofal("client", "ledger", site, "--asked", "--json")[1])["asked"]
    assert [(each["number"], each["sent"]) for each in told] == [(17, True), (18, False), (19, True)]
    assert [each["numbers"].get("depth") for each in told] == [8, 8, None]


@pytest.mark.parametrize("options", [[], ["--verify"], ["--json"]])
def test_a_broken_chain_is_one_line_and_status_1(cofal, site, options):
    text = (site / FILE).read_text()
    (site / FILE).write_text(text.replace('"bytes":120}', '"bytes":12}'))
    status, out, err = cofal("client", "ledger", site, *options)
    assert status == 1
    assert err.count("\n") == 1
    assert "broken at line 1: its content was changed" in err
    assert "verified: " not in out
    assert "compare it with a backup" in err
    if not options:
        assert "What left north by the 0 lines that fit: the chain is broken, this is not all" in " ".join(out.split())
    if options == ["--json"]:
        assert json.loads(out)["verified"] is False
    if options == ["--verify"]:
        assert out == ""


def test_lines_taken_from_the_end_are_one_line_and_status_1(cofal, site):
    lines = (site / FILE).read_text().splitlines(keepends=True)
    (site / FILE).write_text("".join(lines[:-2]))
    status, out, err = cofal("client", "ledger", site, "--verify")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "broken at line 15: missing at the end, since ledger.head says that line 16 was written" in err


def test_a_noted_head_finds_lines_taken_from_the_end_of_both_files(cofal, site):
    lines = (site / FILE).read_text().splitlines(keepends=True)
    head = json.loads(lines[-1])["hash"]
    status, out, _ = cofal("client", "ledger", site, "--verify", "--head", head)
    assert (status, out.count("\n")) == (0, 1)
    (site / FILE).write_text("".join(lines[:-1]))
    (site / HEAD).write_text(f"{15:020d} {json.loads(lines[-2])['hash']}\n")
    assert cofal("client", "ledger", site, "--verify")[0] == 0
    status, _, err = cofal("client", "ledger", site, "--verify", "--head", head)
    assert status == 1
    assert "line 16: missing" in err


def test_a_ledger_without_its_second_file_is_not_called_whole(cofal, site):
    """Nor does the next message make it so; a noted head of the last line that was there does."""
    lines = [json.loads(line) for line in (site / FILE).read_text().splitlines()]
    (site / HEAD).unlink()
    for line, words in ((16, "ledger.head is absent or damaged"), (18, "line 17 notes that ledger.head was absent")):
        status, out, err = cofal("client", "ledger", site, "--verify")
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert f"the lines of the ledger of {site} follow from each other, but they may not be all: {words}" in err
        assert "missing after line 16; a head of that line noted elsewhere would tell (--head HASH)" in err
        assert cofal("client", "ledger", site, "--verify", "--head", lines[-2]["hash"]) == (1, "", err)
        status, out, _ = cofal("client", "ledger", site, "--verify", "--head", lines[-1]["hash"])
        assert (status, out.count(f"Chain verified: {line} lines")) == (0, 1)
        status, out, err = cofal("client", "ledger", site, "--json")
        told = json.loads(out)
        assert (status, err.count("\n"), told["verified"], told["broken"]) == (1, 1, False, "")
        assert words in told["doubt"]
        status, out, _ = cofal("client", "ledger", site)
        assert status == 1
        assert f"What left north by the {line} lines that are there: others may be missing" in " ".join(out.split())
        assert "verified" not in out
        Ledger(site / FILE).append(phase="query.describe", kind="description")


def test_lines_cut_together_with_the_second_file_do_not_leave_a_whole_ledger(cofal, site):
    lines = (site / FILE).read_text().splitlines(keepends=True)
    (site / HEAD).unlink()
    for kept in (12, 0):
        (site / FILE).write_text("".join(lines[:kept]))
        status, out, err = cofal("client", "ledger", site, "--verify")
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert f"nothing tells whether lines are missing after line {kept}" in err
        status, _, err = cofal("client", "ledger", site, "--verify", "--head", json.loads(lines[-1])["hash"])
        assert status == 1
        assert f"broken at line {kept + 1}: missing" in err


@pytest.mark.parametrize("left", ["nothing", "an empty ledger", "a head of no line"])
def test_a_ledger_that_is_gone_is_missed_where_questions_were_answered(cofal, tmp_path, left):
    site = tmp_path / "north"
    create_site(site, SiteSettings(name="north", images="images"))
    admit(site, "north", bytes(32), 10)
    if left == "an empty ledger":
        (site / FILE).touch()
    elif left == "a head of no line":
        (site / HEAD).write_text(f"{0:020d} {START}\n")
    status, out, err = cofal("client", "ledger", site, "--verify")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "broken at line 1: the ledger is missing or empty, though the site has answered questions (1 in " in err
    status, out, _ = cofal("client", "ledger", site, "--json")
    told = json.loads(out)
    assert (status, told["verified"], told["lines"], told["different_questions"]) == (1, False, 0, 1)
    assert "missing or empty" in told["broken"]


def test_a_site_whose_question_was_counted_and_not_sent_is_not_accused(cofal, site):
    """It was killed before the line, say: what is counted may be more than what the ledger has."""
    create_site(site, SiteSettings(name="north", images="images"))
    for question in range(3):
        admit(site, "north", bytes([question] * 32), 10)
    assert cofal("client", "ledger", site, "--verify")[0] == 0


@pytest.mark.parametrize("head", ["", "  ", "abc", "z" * 64])
def test_a_head_that_is_none_verifies_nothing(cofal, site, head):
    status, out, err = cofal("client", "ledger", site, "--verify", "--head", head)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"--head {head!r} is no head" in err


def test_mistakes_name_the_remedy(cofal, site, tmp_path):
    for folder, words in ((tmp_path / "nowhere", "nowhere"), (tmp_path / "empty", "empty")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        status, _, err = cofal("client", "ledger", folder)
        assert (status, err.count("\n")) == (2, 1)
        assert words in err
    run = tmp_path / "run"
    (run / "sites" / "site-0").mkdir(parents=True)
    (run / "sites" / "site-0" / "site.toml").write_text("")
    status, _, err = cofal("client", "ledger", run)
    assert status == 2
    assert "site-0" in err
    assert err.count("\n") == 1
    for command in (["client", "identity"], ["privacy", "spent"]):
        assert cofal(*command, run) == (2, "", err)


@pytest.mark.parametrize("name", ["north", "st.gallen", 'a"b'])
def test_identity_prints_a_line_for_the_others_settings(cofal, tmp_path, name):
    folder, other = tmp_path / "one", tmp_path / "other"
    for place, called in ((folder, name), (other, "east")):
        create_site(place, SiteSettings(name=called, images="images"))
    status, line, err = cofal("client", "identity", folder)
    assert (status, err, line.count("\n")) == (0, "", 1)
    assert cofal("client", "identity", folder)[1] == line  # once and for all
    with open(other / "site.toml", "a", encoding="utf-8") as file:  # the table [peers] is the last
        file.write(line)
    assert read_settings(other).peers == {name: public_identity(site_identity(folder)).hex()}
    create_site(other, read_settings(other))
    assert list(read_settings(other).peers) == [name]
    assert (folder / "identity.json").stat().st_mode & 0o077 == 0


def test_mistakes_with_identities_name_the_remedy(cofal, tmp_path):
    status, _, err = cofal("client", "identity", tmp_path / "nowhere")
    assert (status, err.count("\n")) == (2, 1)
    assert "cofal client init" in err
    assert not (tmp_path / "nowhere").exists()
    create_site(tmp_path / "north", SiteSettings(name="north", images="images"))
    for wrong in ('"abc"', f'"{"g" * 64}"', "7"):
        text = (tmp_path / "north" / "site.toml").read_text().partition("[peers]")[0]
        (tmp_path / "north" / "site.toml").write_text(f"{text}[peers]\neast = {wrong}\n")
        status, _, err = cofal("client", "identity", tmp_path / "north")
        assert (status, err.count("\n")) == (2, 1)
        assert "peers.east is no public identity" in err
        assert "cofal client identity" in err


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("[policy]\nallow = ['agregate']", "policy.allow.0 = 'agregate' is not one of nothing, "),
        ("[policy]\nmin_regoin = 3", "unknown key policy.min_regoin = 3; did you mean min_region?"),
        ("[policy]\nmin_region = 0", "policy.min_region = 0: "),
        ("[policy]\nmin_epsilon = 1.5", "policy.min_epsilon = 1.5: use a number of at least 0 and below 1.414"),
        ("[policy]\nallow = ['perturbed']", "site.toml: policy: allow names perturbed"),
        ("[policy]\nreproducible_noise = 'no'", "policy.reproducible_noise = 'no': "),
        (
            "[policy.count_noise]\nparam = 4.0\nepsilon = 1",
            "unknown key policy.count_noise.param = 4.0; did you mean par",
        ),
        ("[polcy]\nmin_region = 3", "did you mean policy?"),
        ("known_labels = [3]", "known_labels.0 = 3: "),
    ],
)
def test_a_mistake_in_the_settings_is_told_with_key_value_and_remedy(cofal, tmp_path, lines, told):
    (tmp_path / "site.toml").write_text(f"name = 'north'\nimages = 'images'\n{lines}\n")
    status, _, err = cofal("client", "identity", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert told in err
    assert "Value error" not in err


@pytest.mark.parametrize("content", ["", "{}", '{"ed25519": "zz"}', '{"ed25519": "00"}'])
def test_a_damaged_identity_is_to_be_restored_not_removed(cofal, tmp_path, content):
    create_site(tmp_path, SiteSettings(name="north", images="images"))
    (tmp_path / "identity.json").write_text(content)
    status, _, err = cofal("client", "identity", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "restore it from a backup" in err
    assert "remove it" not in err
    assert (tmp_path / "identity.json").read_text() == content
