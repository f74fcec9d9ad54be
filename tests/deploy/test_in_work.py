"""A message in work outlives its connection as often as that ends, and its site's process once."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from cofal.deploy import flwr_private, resident
from cofal.deploy.fleet_api import Delivery, Unreachable


class Server:
    """A server that is away `away` times when a message's content is fetched."""

    node = 7

    def __init__(self, away: int):
        self.away, self.answers = away, []
        identity = flwr_private.TaskIdentity
        identity.run_id, identity.node_id, identity.task_id = 1, 1, 1
        content = RecordDict({"config": ConfigRecord({"a": 1})})
        self.message = Message(content, dst_node_id=7, message_type="query.describe")
        self.message.metadata.__dict__["_message_id"] = self.message.object_id
        with flwr_private.no_object_id_recompute():
            tree = flwr_private.get_object_tree(self.message).SerializeToString()
        self.delivery = Delivery(flwr_private.remove_content_from_message(self.message), tree)

    def content(self, delivery: Delivery) -> Message:
        if self.away:
            self.away -= 1
            raise Unreachable("the server is away")
        return self.message

    def hand_in(self, parcel):
        self.answers.append(parcel.envelope)

    def confirm(self, delivery: Delivery) -> None:
        pass


def answer(message, context):
    return Message(RecordDict({"config": ConfigRecord({"b": 2})}), reply_to=message)


def in_work(folder, server: Server) -> None:
    (folder / resident._IN_WORK).write_bytes(b"1" + server.delivery.to_bytes())


def test_a_server_that_is_lost_again_and_again_is_not_held_against_the_message(tmp_path):
    server = Server(away=5)
    in_work(tmp_path, server)
    with pytest.raises(Unreachable):
        resident._work(server, tmp_path, answer, server.delivery)
    for _ in range(4):
        with pytest.raises(Unreachable):
            resident._take_up(server, tmp_path, answer)
    resident._take_up(server, tmp_path, answer)
    (given,) = server.answers
    assert not given.has_error()
    assert not (tmp_path / resident._IN_WORK).exists()


def test_a_message_that_ends_the_process_twice_is_answered_with_an_error(tmp_path):
    def deadly(message, context):
        raise KeyboardInterrupt  # stands for the end of the process: nothing of ours runs after it

    server = Server(away=0)
    in_work(tmp_path, server)
    with pytest.raises(KeyboardInterrupt):
        resident._work(server, tmp_path, deadly, server.delivery)
    with pytest.raises(KeyboardInterrupt):
        resident._take_up(server, tmp_path, deadly)
    resident._take_up(server, tmp_path, deadly)
    (given,) = server.answers
    assert "ended twice" in given.error.reason
