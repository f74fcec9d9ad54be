"""A worker process: reads tasks as JSON lines from stdin, does each with a fixed number of threads, answers on stdout.

It ends at once when its stdin closes, so that no worker outlives a command that was killed; all files are written
whole, so nothing is lost by that but the task at hand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from cofal.errors import CofalError


def encoder_task(task: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from cofal.reproduce.encoders import EncoderFolder, EncoderJob, train_encoder
    from cofal.reproduce.scales import Scale

    folder = EncoderFolder(Path(task["root"]), Scale.model_validate(task["scale"]))
    return train_encoder(folder, Path(task["data"]), Path(task["cache"]), EncoderJob(**task["job"]))


def cell_task(task: dict[str, Any]) -> dict[str, Any]:
    from cofal.reproduce import measuring

    return measuring.cell_task(task)


TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"encoder": encoder_task, "cell": cell_task}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command that started us hears Ctrl-C and ends us
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not mix with the answers
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tasks: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        task = tasks.get()
        try:
            answer: dict[str, Any] = {"done": TASKS[task["task"]](task)}
        except CofalError as error:
            answer = {"error": str(error), "status": error.exit_status}
        except Exception as error:  # a bug: told with its place, since the worker's own stack is not the command's
            answer = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}", "status": 1}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _listen(tasks: SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        tasks.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
