"""The embedded grid: delivers like the deployed engine, keeps clients apart."""

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from cofal.federation import messages as m
from cofal.federation.grid import InProcessGrid

client_app = ClientApp()


@client_app.query("echo")
def echo(message, context):
    config = m.config_of(message.content)
    config["name"] = context.node_config["name"]
    message.content[m.CONFIG]["spoiled"] = True  # must not reach the next client
    return Message(m.pack(arrays=m.arrays_of(message.content), config=config), reply_to=message)


@client_app.query("fail")
def fail(message, context):
    raise ValueError("no luck")


@pytest.fixture
def grid():
    return InProcessGrid(client_app, {5: {"name": "a"}, 9: {"name": "b"}})


def test_every_node_answers_under_its_own_configuration(grid):
    content = m.pack(arrays={"x": np.arange(6.0).reshape(2, 3)}, config={"n": 1, "names": ["p", "q"]})
    replies = grid.send_and_receive([Message(content, dst_node_id=node, message_type="query.echo") for node in (9, 5)])
    assert [r.metadata.src_node_id for r in replies] == [9, 5]
    assert [m.config_of(r.content) for r in replies] == [
        {"n": 1, "names": ["p", "q"], "name": "b"},
        {"n": 1, "names": ["p", "q"], "name": "a"},
    ]
    assert np.array_equal(m.arrays_of(replies[0].content)["x"], np.arange(6.0).reshape(2, 3))


def test_a_raising_client_becomes_an_error_reply_to_its_question(grid):
    message = Message(m.pack(config={}), dst_node_id=5, message_type="query.fail")
    (reply,) = grid.send_and_receive([message])
    assert reply.has_error()
    assert (reply.error.code, reply.error.reason) == (m.CLIENT_RAISED, "ValueError: no luck")
    assert reply.metadata.reply_to_message_id == message.metadata.message_id


def test_an_unknown_question_is_an_error_reply(grid):
    (reply,) = grid.send_and_receive([Message(m.pack(config={}), dst_node_id=5, message_type="query.nonsense")])
    assert reply.has_error()


def test_push_and_pull_separately(grid):
    numbers = grid.push_messages([Message(m.pack(config={}), dst_node_id=5, message_type="query.echo")])
    assert len(grid.pull_messages(numbers)) == 1
    assert grid.pull_messages(numbers) == []


def test_bytes_are_counted():
    content = m.pack(arrays={"x": np.zeros(1000, dtype=np.float32)}, config={"ids": ["abc", "defg"]}, metrics={"n": 1})
    size = m.content_bytes(Message(content, dst_node_id=1, message_type="query.echo"))
    assert 4000 + 10 + 9 <= size <= 4000 + 10 + 9 + 200  # payload, ids and numbers, and numpy's header
