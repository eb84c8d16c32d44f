"""The API of versions under `/api/v1`, which clients of lakeFS speak: repositories, branches, commits, objects.

    dialect.py      the ways of this protocol, and `operations`, by which a module declares its routes
    needs.py        the needs of routes: right, largest body, class of work
    routes/         the handlers, one file a noun, each with the types that it takes and answers
    api.py          all routes
    access.py       access keys and their secrets, and the rights of pairs
    call.py         one request: its repository, branch and entry
    models.py       repositories, refs, commits, entries and pages as clients read them
    errors.py       errors as a status and `{"message": …}`, in the words that clients know

A route is declared by its handler, as all routes of a node (`server/dispatch.py`); a new file of `routes/` is listed in
`api.py`. A plain function runs in a thread of its class of work. A coroutine runs on the event loop; what it does that
may block goes through `call.in_thread`. With `at_once=True` it is tried where the request is read, and there raises
`WouldBlock` instead of waiting:

    @routes.get(f"{REPOSITORY}/tags/{{tag}}", read(), at_once=True)
    def _get_tag(call: Call) -> Ref:
        name = call.names["tag"]
        return Ref(name, call.repository.tag(name))

Invariants:
* every answer that is no success is `{"message": …}`, but the conflict of a merge, which has its own form;
* no error of a caller is a 5xx; a message has the words that clients of lakeFS may depend on;
* a change is one line of the audit log, with the name of its pair.
"""
