"""A site's process that answers each round of training with another kind of rubbish, those of `KINDS` in their order,
for one started with this folder on PYTHONPATH; or always with the kind that COFAL_TEST_RUBBISH names."""

import dataclasses
import os

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from cofal.deploy import resident
from cofal.federation import messages as m
from cofal.federation.bundle import bundle, unbundle

KINDS = ("garbage", "wrong shapes", "NaN", "a hundred times the norm", "truncated", "half sent")
_honest_reply, _honest_hand_in = resident._reply, resident.FleetConnection.hand_in
_kind = ""  # of the answer that is on its way


def _spoilt(content, kind):
    content = unbundle(content)
    record = dict(content[m.ARRAYS].items())
    name = max(record, key=lambda each: len(record[each].data))
    array, right = np.array(m.read_array(record[name])), record[name]
    match kind:
        case "garbage":
            record[name] = Array(right.dtype, right.shape, right.stype, b"\x93garbage" * 20)
        case "wrong shapes":
            record[name] = Array(array[:-1])
        case "NaN":
            record[name] = Array(np.full_like(array, np.nan))
        case "a hundred times the norm":
            record = _changed(record, lambda array: 100 * array)
        case "poison":  # nothing that a check could find
            record = _changed(record, lambda array: array + 0.1)
        case "truncated":
            record[name] = Array(right.dtype, right.shape, right.stype, right.data[: len(right.data) // 2])
    content[m.ARRAYS] = ArrayRecord(record)
    return bundle(content)


def _changed(record, change):
    arrays = {each: m.read_array(array) for each, array in record.items()}
    return {each: Array(np.asarray(change(array), dtype=array.dtype)) for each, array in arrays.items()}


def _reply(connection, folder, answer, delivery):
    def answer_with_rubbish(message, context):
        global _kind
        reply, _kind = answer(message, context), ""
        if message.metadata.message_type != m.TRAIN:
            return reply
        _kind = os.getenv("COFAL_TEST_RUBBISH") or KINDS[m.config_of(message.content)["server-round"] - 1]
        resident.log.warning("sending rubbish: %s", _kind)
        return Message(_spoilt(reply.content, _kind), reply_to=message)

    return _honest_reply(connection, folder, answer_with_rubbish, delivery)


def _hand_in(self, parcel):
    if _kind == "half sent":
        parcel = dataclasses.replace(parcel, parts=dict(list(parcel.parts.items())[:2]))
    _honest_hand_in(self, parcel)


resident._reply, resident.FleetConnection.hand_in = _reply, _hand_in
