"""Lines of JSON for clients of Armada: those that are made without a message are the same as those made with one."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import MessageToDict

from millpond.events.event import Event
from millpond.events.names import StreamName
from millpond.server.armada.messages import KINDS, api_event
from millpond.server.armada.ndjson import LINES


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("job", ["", "01m8"])
def test_a_line_without_a_message_is_as_one_with_it(kind: str, job: str) -> None:
    stream = StreamName("etl", "nightly")
    event = Event(5 << 20, 1_700_000_000_123, b"", kind, {"job_id": job} if job else {})
    line = LINES.encode(stream, event)
    message = api_event(stream, event)
    assert line is not None and message is not None
    (found,) = json.loads(line)["result"]["message"].values()
    wanted = MessageToDict(getattr(message, kind), use_integers_for_enums=True)
    for fields in (found, wanted):
        assert fields.pop("created")
        fields.get("job", {}).pop("created", None)
    assert found == wanted
