"""gRPC of a node: one server, and one way of a call through it, for Armada's API, the workflows' and our own.

    serving.py     the server: its port, TLS, limits, start and end
    dispatch.py    one call: caller, room, right, message, handler, status, audit line, metrics
    status.py      errors as a status

A service is a table of rows, a row for each method, beside its handlers: `armada/`, `workflows/`.
"""
