"""Lines of JSON for clients of Armada: those that are made without a message are the same as those made with one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from millpond.events.event import Event
from millpond.events.names import StreamName
from millpond.server.armada.messages import KINDS, api_event
from millpond.server.armada.ndjson import LINES
from millpond.server.armada.wire import armada_pb2 as pb

TEXTS = st.sampled_from(["", "01m8", "né 😀", 'a "quoted" one'])
VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_INT32: st.sampled_from([0, 7, -1, 2**31 - 1]),
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from([0, 2**32 - 1]),
    FieldDescriptor.CPPTYPE_INT64: st.sampled_from([0, -1, 2**63 - 1]),
    FieldDescriptor.CPPTYPE_UINT64: st.sampled_from([0, 2**64 - 1]),
    FieldDescriptor.CPPTYPE_DOUBLE: st.sampled_from([0.0, 1.5, float("inf")]),
    FieldDescriptor.CPPTYPE_FLOAT: st.sampled_from([0.0, 1.5]),
    FieldDescriptor.CPPTYPE_ENUM: st.sampled_from([0, 1]),
}


def check_line(event: Event) -> None:
    """The line of an event is as the JSON of its message, but for the time."""
    stream = StreamName("etl", "nightly")
    line, message = LINES.encode(stream, event), api_event(stream, event)
    assert line is not None and message is not None
    (found,) = json.loads(line)["result"]["message"].values()
    wanted = MessageToDict(getattr(message, event.kind), use_integers_for_enums=True)
    for fields in (found, wanted):
        assert fields.pop("created")
        fields.get("job", {}).pop("created", None)
    assert found == wanted


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("job", ["", "01m8"])
def test_a_line_without_a_message_is_as_one_with_it(kind: str, job: str) -> None:
    check_line(Event(5 << 20, 1_700_000_000_123, b"", kind, {"job_id": job} if job else {}))


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_fields_of_any_type_are_as_in_the_message(kind: str, data: st.DataObject) -> None:
    inner = getattr(pb.EventMessage(), kind)
    for field in inner.DESCRIPTOR.fields:
        values = VALUES.get(field.cpp_type)
        if values is None or field.label == FieldDescriptor.LABEL_REPEATED:
            if data.draw(st.booleans()) and field.label != FieldDescriptor.LABEL_REPEATED:
                getattr(inner, field.name).SetInParent()
        else:
            setattr(inner, field.name, data.draw(values))
    check_line(Event(5 << 20, 1_700_000_000_123, inner.SerializeToString(), kind, {"job_id": "01m8"}))
