"""What a site answers of a server that asks more than a selection needs: not for ever, and not in the open."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import Message
from typer.testing import CliRunner

from cofal.cli import app as cli
from cofal.data.imageset import ImageSet
from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.client_app import app
from cofal.federation.grid import InProcessGrid
from cofal.federation.site_settings import SiteSettings, create_site
from cofal.privacy.answered import FILE, answered
from cofal.privacy.ledger import FILE as LEDGER
from cofal.privacy.ledger import read_ledger
from cofal.privacy.policy import Policy

FROZEN = "frozen_pixels:encode"
DIGEST = models.frozen_digest(FROZEN)


class Site:
    """A real site of 60 samples behind the real app, its embeddings made."""

    def __init__(self, folder, **policy):
        self.folder = folder
        pixels = np.random.default_rng(0).integers(0, 255, (60, 8, 8, 1)).astype(np.uint8)
        ImageSet.of(pixels, [f"scan-{row}" for row in range(60)], np.arange(60) % 2, ["no", "yes"]).save(
            folder / "images"
        )
        settings = SiteSettings(name="north", images="images", frozen=FROZEN, policy=Policy(**policy))
        create_site(folder, settings)
        self.grid = InProcessGrid(app, {2: {"site": str(folder)}})
        self.send(
            m.EMBED,
            {"digest": DIGEST, "model": m.to_json({"kind": "frozen"}), "share": "none", "epsilon": 0.0, "seed": 3},
        )

    def send(self, kind, config, arrays=None):
        content = m.pack(config=config, arrays=arrays)
        return self.grid.send_and_receive([Message(content, dst_node_id=2, message_type=kind)])[0]

    def ask(self, kind, arrays=None, method="typiclust", numbers=None, **more):
        config = {"digest": DIGEST, "track": "main", "method": method, "asked": 0, "budget": 3, "kind": kind}
        return self.send(m.AGGREGATE, {**config, "numbers": json.dumps(numbers or {}), **more}, arrays)

    def sums(self, seed, **more):
        """Sums of the rows around random centres: another question for each seed."""
        centers = np.random.default_rng(seed).normal(size=(1, 2, 64)).astype(np.float32)
        centers /= np.linalg.norm(centers, axis=2, keepdims=True)
        return self.ask("sums", {"centers": centers}, numbers={"bits": 20}, **more)


@pytest.fixture
def site(tmp_path):
    return lambda **policy: Site(tmp_path / "north", **policy)


def test_a_site_answers_so_many_different_questions_and_no_more(site):
    north = site(max_questions=3)
    first = north.sums(0)
    assert not first.has_error(), first.error
    for seed in (1, 1, 0, 2, 1):  # asked again, a question is the same one
        assert not north.sums(seed).has_error()
    assert answered(north.folder) == 3
    reply = north.sums(3)
    assert reply.error.code == m.REFUSED
    assert "answered 3 different questions" in reply.error.reason
    assert "policy.max_questions" in reply.error.reason
    assert read_ledger(north.folder / LEDGER).entries[-1]["refused"] == reply.error.reason
    shown = CliRunner().invoke(cli, ["client", "ledger", str(north.folder)]).stdout
    assert "3 different questions answered of the 3 that policy.max_questions allows" in shown
    again = north.sums(0)
    assert np.array_equal(m.arrays_of(again.content)["sums"], m.arrays_of(first.content)["sums"])


def test_a_question_is_counted_before_it_is_answered(site):
    """Whatever becomes of the answer: the site may be killed while it works it out."""
    north = site(count_noise={"parameter": 1.0, "epsilon": 1e-3})
    reply = north.sums(0)
    assert "privacy budget" in reply.error.reason
    assert answered(north.folder) == 1


def test_a_killed_note_is_no_question(site):
    north = site(max_questions=2)
    north.sums(0)
    with open(north.folder / FILE, "a") as file:
        file.write("\0" * 64 + "\n0123")  # what a power cut leaves of a line, and one cut short
    assert answered(north.folder) == 1
    assert not north.sums(1).has_error()
    assert answered(north.folder) == 2
    assert (north.folder / FILE).stat().st_mode & 0o077 == 0  # the owner's alone


@pytest.mark.parametrize(
    ("method", "kind", "arrays", "numbers", "said"),
    [
        ("maxherding", "offers", {"candidates": 1e5 * np.eye(64, dtype=np.float32)}, {"depth": 3}, "1e+05 long"),
        ("maxherding", "offers", {"candidates": 100_000 * np.eye(64, dtype=np.int32)}, {"depth": 3}, "type int32"),
        ("maxherding", "shift", {"candidates": 2 * np.eye(64)}, {"sharpness": 1e9, "bits": 18}, "candidates 2 long"),
        ("maxherding", "shift", {"candidates": np.eye(64)}, {"bits": 18}, "no number 'sharpness'"),
        ("typiclust", "sums", {"centers": 1e6 * np.eye(64)[None]}, {"bits": 20}, "centers 1e+06 long"),
        ("typiclust", "sums", {"centers": np.zeros((1, 8000, 64))}, {"bits": 20}, "8000 clusters where 500"),
        ("typiclust", "sums", {"centers": np.zeros((64, 64))}, {"bits": 20}, "shape (64, 64)"),
        ("typiclust", "sums", {}, {"bits": 20}, "no array 'centers'"),
        ("likeness", "x", {"centers": np.zeros((1, 2, 64))}, {"bits": 20}, "a question of the kind 'x'"),
    ],
)
def test_a_server_that_lies_is_refused_in_one_line(site, method, kind, arrays, numbers, said):
    north = site()
    reply = north.ask(kind, arrays, method, numbers)
    assert reply.error.code == m.REFUSED
    assert said in reply.error.reason
    assert "\n" not in reply.error.reason
    assert answered(north.folder) == 0


def test_a_site_may_insist_on_masks(site):
    north = site(secure_sums=True)
    reply = north.sums(0)
    assert reply.error.code == m.REFUSED
    assert "under masks alone" in reply.error.reason
    for measured in (north.sums(0, method="likeness"), north.ask("cells", {}, "likeness", {"most": 4, "fine": 0})):
        assert "use neither auto nor shares = 'auto', or policy.secure_sums = false" in measured.error.reason
    assert not north.ask("cells", numbers={"most": 4, "fine": 0}).has_error()  # the means of cells are each site's own
    assert north.sums(0, session="s1", round=0).error.reason.count("send it the keys first") == 1


def test_what_a_server_sent_does_not_swell_the_ledger(site):
    north = site()
    reply = north.ask("cells", method="x" * 10**6)
    assert reply.error.code == m.REFUSED
    assert len(reply.error.reason) <= 1000
    assert (north.folder / LEDGER).stat().st_size < 10_000
