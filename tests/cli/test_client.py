"""`cofal client ledger`: the account of a site for people and machines, and the exit status of a broken chain."""

import json
import sys

import pytest

from cofal.cli import main
from cofal.privacy.ledger import FILE, Ledger

WEIGHT = {"name": "weight", "dtype": "float32", "shape": [500], "bytes": 2000}


@pytest.fixture
def cofal(monkeypatch, capsys):
    """Call the command line in this process: (exit status, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofal", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out, err

    return call


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


@pytest.mark.parametrize("options", [[], ["--verify"], ["--json"]])
def test_a_broken_chain_is_one_line_and_status_1(cofal, site, options):
    text = (site / FILE).read_text()
    (site / FILE).write_text(text.replace('"bytes":120}', '"bytes":12}'))
    status, out, err = cofal("client", "ledger", site, *options)
    assert status == 1
    assert err.count("\n") == 1
    assert "broken at line 1: its content was changed" in err
    assert "verified: " not in out
    if options == ["--json"]:
        assert json.loads(out)["verified"] is False
    if options == ["--verify"]:
        assert out == ""


def test_a_noted_head_finds_lines_taken_from_the_end(cofal, site):
    lines = (site / FILE).read_text().splitlines(keepends=True)
    head = json.loads(lines[-1])["hash"]
    status, out, _ = cofal("client", "ledger", site, "--verify", "--head", head)
    assert (status, out.count("\n")) == (0, 1)
    (site / FILE).write_text("".join(lines[:-1]))
    assert cofal("client", "ledger", site, "--verify")[0] == 0
    status, _, err = cofal("client", "ledger", site, "--verify", "--head", head)
    assert status == 1
    assert "line 16: missing" in err


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
