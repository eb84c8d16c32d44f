"""The API of job events over gRPC, which clients of Armada speak: queues, submissions, and the events of job sets.

    means.py          what the services stand on
    watching.py       one reader per stream, for any number of watchers
    messages.py       a stored event ⇄ the message that clients read
    events_api.py queues_api.py jobs_api.py queries_api.py     the services
    job_records.py    what the events of a job say of it
    ndjson.py         the same events as lines of JSON, for `routes/job_sets.py`
    wire/             the messages: a definition, and what `tools/protocols.py` makes of it

Invariants:
* no error of a caller is INTERNAL or UNKNOWN; bytes that are no message are INVALID_ARGUMENT;
* a change is one line of the audit log;
* what a watcher holds is bounded: a slice of events that it is being sent. One that takes nothing is disconnected;
* a message to a client of Armada always holds an event: its clients fail without one.
"""
