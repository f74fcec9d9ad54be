"""The encoder stage: shared and own encoders trained by Phase I, cached, found again; the paper's set-up starts."""

from __future__ import annotations

import pickle
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_reproduce_run import COFAL, ENVIRONMENT, until, workers_of

from cofal.errors import UserError
from cofal.reproduce.cells import Cell
from cofal.reproduce.encoders import EncoderFolder, EncoderJob, encoder_jobs, prepare_sites, train_encoder
from cofal.reproduce.scales import Scale, load_scale
from cofal.reproduce.spaces import Spaces, split_rows


@pytest.fixture
def scale() -> Scale:
    plan = load_scale("smoke").sets["digits-trained"]
    small = plan.model_copy(update={"set": ["data.limit=60", "data.test_limit=40", "pretrain.rounds=1"]})
    return load_scale("smoke").model_copy(update={"sets": {"digits-trained": small}})


def test_shared_and_own_encoders_are_trained_once_and_serve_a_federation(
    scale: Scale, tmp_path: Path, cache: Path
) -> None:
    folder = EncoderFolder(tmp_path / "encoders", scale)
    shared = EncoderJob("digits-trained", "iid", None, 0)
    own = [EncoderJob("digits-trained", "iid", None, 0, site) for site in ("site-0", "site-1")]
    assert {shared, *own} <= set(encoder_jobs(scale))
    with pytest.raises(UserError, match="cofal reproduce encoders"):
        folder.facts(shared)
    prepare_sites(folder, Path(), cache, [shared, *own])
    facts = [train_encoder(folder, Path(), cache, job) for job in (shared, *own)]
    assert [each["images"] for each in facts] == [60, 30, 30]
    assert len({each["digest"] for each in facts}) == 3
    written = folder.facts_file(shared).stat().st_mtime_ns
    assert train_encoder(folder, Path(), cache, shared) == facts[0]
    assert folder.facts_file(shared).stat().st_mtime_ns == written

    cell = Cell("digits-trained", "iid", None, 2, "ono-typiclust", 0, (10,))
    spaces = Spaces(scale, folder, None, cache, tmp_path / "sets.json")
    federation = spaces.federation(cell)
    assert [len(rows) for rows in federation.embeddings] == [30, 30]
    assert federation.own is not None
    assert federation.own[0].test.shape == federation.test.shape
    labels = folder.labels("digits-trained")[0]
    for number, site in enumerate(
        ("site-0", "site-1")
    ):  # the split of a cell is the split its encoders were trained on
        rows = np.load(folder.run(shared).sites / site / "rows.npy")
        assert np.array_equal(rows, split_rows(labels, cell)[number])
        assert np.array_equal(labels[rows], federation.labels[number])

    # Where the data is gone, notes still say what a record depends on; arrays are refused.
    assert spaces.identity(cell) == {"shared": facts[0]["digest"], "own": [each["digest"] for each in facts[1:]]}
    elsewhere = Spaces(scale, EncoderFolder(tmp_path / "gone", scale), None, cache, tmp_path / "sets.json")
    assert elsewhere.identity(cell) == spaces.identity(cell)
    with pytest.raises(UserError, match="cofal reproduce encoders"):
        elsewhere.check(cell)


def test_the_encoder_of_another_split_stands_in_by_rule(tmp_path: Path, cache: Path) -> None:
    cpu = load_scale("cpu")
    spaces = Spaces(cpu, EncoderFolder(tmp_path, cpu), None, cache, tmp_path / "sets.json")

    def used(split: str, alpha: float | None, seed: int, encoder: str = "") -> str:
        return spaces.name(Cell("cifar10", split, alpha, 2, "random", seed, (10,), encoder=encoder))

    assert used("iid", None, 2) == "cifar10, iid, seed 0, shared encoder"
    assert used("dirichlet", 0.1, 1) == "cifar10, dirichlet-0.1, seed 0, shared encoder"
    assert used("dirichlet", 0.1, 1, "iid") == "cifar10, iid, seed 0, shared encoder"
    assert used("dirichlet", 10.0, 0) == "cifar10, iid, seed 0, shared encoder"


@pytest.mark.smoke
@pytest.mark.timeout(900)
def test_the_papers_set_up_trains_its_first_rounds_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    """1,000 rounds of ResNet-18 are for a GPU; the same command reaches its first ones on 20 images here."""
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name in names:
        batch = {"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), "labels": [0, 1, 2, 3]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"kind {n}" for n in range(10)]}, protocol=2))
    command = [
        "encoders",
        "--scale",
        "paper",
        "--data",
        "data",
        "--device",
        "cpu",
        "--set",
        "cifar10",
        "--encoders",
        "e",
    ]
    environment = {**ENVIRONMENT, "COFAL_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [*COFAL, *command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until(lambda: any(file.read_text().count("\n") >= 2 for file in tmp_path.glob("e/*/*/metrics.jsonl")), process)
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()  # its workers end with it
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert list(tmp_path.glob("e/*/*/checkpoints/encoder.safetensors"))  # the next start goes on from here
