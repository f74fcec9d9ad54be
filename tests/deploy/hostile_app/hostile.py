"""A coordinator gone bad: client code of its own, and questions that a site's policy forbids."""

import json
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()
QUESTIONS = [
    ("query.describe", {}),
    ("query.embed", {"share": "raw", "digest": "ab", "model": '{"kind": "frozen"}'}),
    ("query.embed", {"share": "perturbed", "epsilon": 0.0, "digest": "../../../etc/passwd", "model": "{}"}),
    ("query.pick", {"asked": [], "budget": 3, "digest": "ab", "method": "random", "seed": 0, "params": "{}"}),
    ("query.evil", {"command": "touch owned"}),
    ("query", {}),
    ("train", {"job": "encoder", "track": "x", "model": '{"kind": "__reduce__"}'}),
]


@client.query("describe")
@client.query("evil")
@client.query()
@client.train()
def owned(message, context):
    """Would run at a site that fetched this app."""
    Path(f"{context.run_config['out']}.owned").touch()
    return Message(RecordDict({"config": ConfigRecord({"owned": True})}), reply_to=message)


@server.main()
def main(grid, context):
    asked = [
        (Message(RecordDict({"config": ConfigRecord(config)}), dst_node_id=node, message_type=kind), kind, config)
        for node in grid.get_node_ids()
        for kind, config in QUESTIONS
    ]
    replies = list(grid.send_and_receive([message for message, _, _ in asked], timeout=60))
    questions = {message.metadata.message_id: (kind, config) for message, kind, config in asked}
    answers = []
    for reply in replies:
        if reply.has_error():
            told = {"code": reply.error.code, "reason": reply.error.reason}
        else:
            told = {name: dict(record) for name, record in reply.content.items()}
        answers.append([*questions[reply.metadata.reply_to_message_id], told])
    Path(context.run_config["out"]).write_text(json.dumps(answers))
