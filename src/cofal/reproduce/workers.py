"""Tasks side by side: a few worker processes, each with its threads, handed one task at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from cofal.errors import CofalError, EnvironmentFault, UserError


def run_tasks(
    tasks: Sequence[dict[str, Any]], jobs: int, threads: int = 1, tick: float = 1.0
) -> Generator[tuple[dict[str, Any], dict[str, Any]] | None]:
    """Yield (task, answer) as tasks finish, and None every `tick` seconds in which none does.

    The first task that fails ends all of them. Closing the generator stops the workers.
    """
    waiting, workers = deque(tasks), []
    selector, busy = DefaultSelector(), {}
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))}
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        for _ in range(min(jobs, len(tasks))):
            worker = subprocess.Popen(
                [sys.executable, "-m", "cofal.reproduce.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
            workers.append(worker)
            selector.register(worker.stdout, EVENT_READ, worker)  # type: ignore[arg-type]
            busy[worker] = _hand(worker, waiting.popleft())
        while busy:
            events = selector.select(timeout=tick)
            if not events:
                yield None
            for key, _ in events:
                worker = key.data
                answer = _answer(worker, busy[worker])
                finished = busy.pop(worker)
                if waiting:
                    busy[worker] = _hand(worker, waiting.popleft())
                else:
                    selector.unregister(worker.stdout)
                yield finished, answer
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
            for pipe in filter(None, (worker.stdin, worker.stdout)):
                with suppress(OSError):
                    pipe.close()
        selector.close()


def _hand(worker: subprocess.Popen, task: dict[str, Any]) -> dict[str, Any]:
    worker.stdin.write(json.dumps(task) + "\n")  # type: ignore[union-attr]
    worker.stdin.flush()  # type: ignore[union-attr]
    return task


def _answer(worker: subprocess.Popen, task: dict[str, Any]) -> dict[str, Any]:
    line = worker.stdout.readline()  # type: ignore[union-attr]
    if not line:
        raise EnvironmentFault(
            f"a worker process died at {task.get('title', task['task'])} (status {worker.wait()}); "
            "if memory ran out, use fewer --jobs; run the same command again to go on"
        )
    answer = json.loads(line)
    if "error" in answer:
        kind = UserError if answer["status"] == UserError.exit_status else CofalError
        raise kind(f"{task.get('title', task['task'])}: {answer['error']}")
    return answer["done"]
