"""The ServerApp of benchmarks/deployment.py: the sites run cofal's own ClientApp, the times are taken here."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Message
from flwr.serverapp import ServerApp

from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.delivery import deliver
from cofal.learning.state import state_to_arrays
from cofal.rng import torch_generator

server = ServerApp()
TINY, LARGE = 6, 4  # round trips; the first of each warms up and is not counted


@server.main()
def main(grid, context):
    """Tiny: who are you. Large: a ResNet-18 classifier (45 MB) there and back, one step on a site's four labels."""
    while len(nodes := list(grid.get_node_ids())) < int(context.run_config["sites"]):
        time.sleep(0.2)
    tiny = [trip(grid, nodes, m.DESCRIBE, lambda: m.pack(config={})) for _ in range(TINY)]
    arrays, config = question()

    def changed():
        """Another model each round, as training makes: what the SuperLink has seen before is not sent again."""
        for array in arrays.values():
            if array.dtype == np.float32:
                array += np.float32(1e-3)
        return m.pack(arrays=arrays, config=config)

    large = [trip(grid, nodes, m.TRAIN, changed) for _ in range(LARGE)]
    Path(context.run_config["out"]).write_text(json.dumps({"tiny": tiny[1:], "large": large[1:]}))


def question():
    """The large round's model and what sites are told to do with it."""
    description = models.image_model("resnet18", 1, 10)
    arrays = state_to_arrays(models.build(description, torch_generator(0, "benchmark")))
    config = {
        "job": "image", "track": "main", "model": m.to_json(description), "local-epochs": 1, "batch-size": 32,
        "lr": 0.1, "optimizer": "sgd", "momentum": 0.0, "weight-decay": 0.0, "seed": 0, "server-round": 1,
        "views": "glyph",
    }  # fmt: skip
    return arrays, config


def trip(grid, nodes, kind, content) -> float:
    """Seconds from sending to the last answer, delivered as the server's phases deliver."""
    packed = content()
    questions = {str(node): Message(packed, dst_node_id=node, message_type=kind) for node in nodes}
    began = time.monotonic()
    for name, reply in deliver(grid, questions, timeout=600):
        if isinstance(reply, str) or reply.has_error():
            raise RuntimeError(f"{name}: {reply if isinstance(reply, str) else reply.error.reason}")
    return time.monotonic() - began
