"""Several processes on one store, some of them killed in the middle of a write: nothing that was told is lost."""

import multiprocessing
import os
import random
import sqlite3
import time
from collections import Counter

from cofal.labeling.store import LabelStore

FORK = multiprocessing.get_context("fork")
CLASSES = ["cat", "dog"]


def work(folder, annotator, told=None):
    """Label whatever is handed out, to the end; every answer that the store took is told, one line each."""
    store = LabelStore.open(folder)
    while (left := store.progress()).open + left.second_opinions:
        query = store.claim(annotator)
        if query is None:  # the last ones are in front of others
            time.sleep(0.005)
            continue
        store.label(query.id, CLASSES[hash(query.id + annotator) % 2], annotator, 1.0)
        if told is not None:
            os.write(told, f"{query.id}\n".encode())


def run(target, *argument_lists):
    processes = [FORK.Process(target=target, args=arguments) for arguments in argument_lists]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def check(folder):
    """What must hold of the file whatever happened to its writers."""
    with sqlite3.connect(folder / "labels.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store = LabelStore.open(folder)
    answers, trail = store.answers(), store.history()
    counted = Counter((event.sample, event.annotator) for event in trail if event.action in ("label", "skip"))
    assert counted == {(sample, each.annotator): 1 for sample, given in answers.items() for each in given}
    last = {event.sample: event.state for event in trail}
    for query in store.queries():
        values = {answer.label for answer in answers.get(query.id, [])}
        assert query.state == ("open" if not values else "labelled" if len(values) == 1 else "disputed")
        assert last[query.id] == query.state
    return store


def test_processes_share_the_work_without_loss_or_repetition(tmp_path):
    LabelStore.open(tmp_path, CLASSES).ask("main", [f"x{number}" for number in range(40)])
    run(work, *((tmp_path, name) for name in ("ann", "bob", "cid")))
    store = check(tmp_path)
    assert [len(given) for given in store.answers().values()] == [1] * 40


def test_with_full_overlap_every_image_gets_two_opinions(tmp_path):
    store = LabelStore.open(tmp_path, CLASSES)
    store.ask("main", [f"x{number}" for number in range(15)])
    store.set_overlap(1.0)
    run(work, *((tmp_path, name) for name in ("ann", "bob")))
    store = check(tmp_path)
    assert [len(given) for given in store.answers().values()] == [2] * 15
    assert store.agreement().images == 15


def open_and_ask(folder, gate, number):
    gate.wait(30)
    LabelStore.open(folder, CLASSES).ask(f"track-{number}", [f"x{place}" for place in range(5)])


def test_many_processes_may_open_a_new_store_at_once(tmp_path):
    gate = FORK.Barrier(6)
    run(open_and_ask, *((tmp_path, gate, number) for number in range(6)))
    assert len(check(tmp_path).queries()) == 30


def test_what_was_told_survives_kill_9_in_the_middle_of_writes(tmp_path):
    LabelStore.open(tmp_path, CLASSES).ask("main", [f"x{number}" for number in range(600)])
    pause = random.Random(0)
    told = set()
    for strike in range(4):
        running = []
        for name in ("ann", "bob"):
            reader, writer = os.pipe()
            process = FORK.Process(target=work, args=(tmp_path, name, writer))
            process.start()
            os.close(writer)
            running.append((process, reader))
        lines = os.read(running[strike % 2][1], 4096)  # writes are under way
        time.sleep(pause.uniform(0.0, 0.05))  # any moment of a write will do: the store must not care
        for process, _ in running:
            process.kill()
        for process, reader in running:
            process.join(30)
            assert process.exitcode == -9
            while part := os.read(reader, 65536):
                lines += part
            os.close(reader)
        told |= set(lines.decode().split())
        store = check(tmp_path)
        assert told <= set(store.answers()), "an answer that the store had taken is gone"
    assert len(told) >= 4


def inherited(store):
    store.label("b", "cat", "child")


def test_a_child_of_the_process_does_not_share_its_connections(tmp_path):
    store = LabelStore.open(tmp_path, CLASSES)
    store.ask("main", ["a", "b"])
    store.label("a", "cat", "parent")
    run(inherited, (store,))
    assert store.labels() == {"a": "cat", "b": "cat"}
    store.label("b", "dog", "parent")
    check(tmp_path)
