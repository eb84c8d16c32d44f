"""The API of versions under `/api/v1`, which clients of lakeFS speak: repositories, branches, commits, objects.

    api.py          a request becomes a call: route, right, body, answer
    table.py        one row per route: right, largest body, class of work
    access.py       access keys and their secrets, and the rights of pairs
    call.py         one request: its repository, branch, query and body
    query.py bodies.py     what the query and the body must be, in the words that clients know
    errors.py       errors as a status and `{"message": …}`
    models.py       repositories, refs, commits, entries and pages as clients read them
    routes/         the handlers, one file a noun

A route is added in three places:

1. `table.py`: its row. The right is decided by it before any of the body is read.
2. a file of `routes/`: a function `(call: Call) -> Response`, and its line in `HANDLERS` of that file. A plain function
   runs in a thread of its class of work, with its body read. A coroutine runs on the event loop, and reads
   `call.request.stream()` itself; what it does that may block goes through `call.in_thread`.
3. `api.py`: a new file of `routes/` is listed in `_MODULES`. With a row that has no handler, or a handler that has no
   row, a node does not start.

    def get_tag(call: Call) -> Response:
        name = call.names["tag"]
        return answer(ref(name, call.repository.tag(name)))

Invariants:
* every answer that is no success is `{"message": …}`, but the conflict of a merge, which has its own form;
* no error of a caller is a 5xx; a message has the words that clients of lakeFS may depend on;
* a change is one line of the audit log, with the name of its pair.
"""
