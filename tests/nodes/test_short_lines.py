"""One value over a kept socket is told as by any other way; what is strange, and every error, is left to urllib3."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millpond.errors import Denied, NotFound, Unavailable
from millpond.nodes.short_lines import ShortLines
from millpond.nodes.transport import Connection, Nodes
from millpond.settings import Settings, load_settings
from tests.nodes.acted import Asked, Stage, cut, free_port, half, refuse, say, silence


def quick(**told: Any) -> Settings:
    return load_settings(**{"send_part_retry_delay": "10ms", "connect_timeout": "2s", "read_timeout": "5s"} | told)


def raw(answer: bytes, pieces: int = 1) -> Any:
    """Say exactly this, in so many pieces."""

    def act(asked: Asked) -> None:
        size = max(1, len(answer) // pieces)
        for start in range(0, len(answer), size):
            asked.wfile.write(answer[start : start + size])
            asked.wfile.flush()

    return act


def head(*lines: str) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_an_answer_comes_as_it_was_said_and_the_socket_is_kept() -> None:
    callers = set()

    def note(asked: Asked) -> None:
        callers.add(asked.client_address)
        asked.answer(200, {"value": 7})

    with Stage(note) as stage:
        node = Connection(stage.url, quick(token="secret"))
        assert [node.value("/v1/x?key=%C3%A9") for _ in range(5)] == [{"value": 7}] * 5
        method, path, headers, body = stage.asked[0]
        assert (method, path, body) == ("GET", "/v1/x?key=%C3%A9", b"")
        assert headers["Authorization"] == "Bearer secret"
        assert headers["Host"] == stage.url.removeprefix("http://")
        assert len(callers) == 1


@pytest.mark.parametrize("size", [0, 1, 200_000])
@pytest.mark.parametrize("pieces", [1, 7, 50])
def test_answers_may_come_in_any_pieces(size: int, pieces: int) -> None:
    body = json.dumps("x" * size).encode()
    answer = head("HTTP/1.1 200 OK", f"CONTENT-Length:  {len(body)}", "x-note: a:b") + body
    with Stage(raw(answer, pieces)) as stage:
        lines = ShortLines(stage.url, quick())
        for _ in range(2):
            told = lines.ask("/x", {})
            assert told is not None
            assert (told.status, told.data, told.headers["x-note"]) == (200, body, "a:b")
        assert lines.usable


@pytest.mark.parametrize(
    "answer",
    [
        head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked") + b"1\r\n7\r\n0\r\n\r\n",
        head("HTTP/1.0 200 OK", "Content-Length: 1") + b"7",
        head("HTTP/1.1 200 OK", "Content-Length: 1") + b"7 and more",
        head("HTTP/1.1 200 OK", "Content-Length: minus") + b"7",
        head("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Encoding: gzip") + b"7",
        head("HTTP/1.1 100 Continue") + head("HTTP/1.1 200 OK", "Content-Length: 1") + b"7",
        head("HTTP/1.1 204 No Content"),
        b"220 smtp.example.org\r\n\r\n",
        b"x" * 100_000,
    ],
)
def test_what_is_strange_is_asked_by_urllib3_from_then_on(answer: bytes) -> None:
    with Stage(raw(answer), say(200, 8)) as stage:
        node = Connection(stage.url, quick())
        assert [node.value("/x") for _ in range(3)] == [8] * 3
        assert len(stage.asked) == 4, "once in vain, then each question once"


@pytest.mark.parametrize("broken", [cut, lambda: half(b"7")])
def test_a_line_that_breaks_is_no_error(broken: Any) -> None:
    with Stage(say(200, 1), broken(), say(200, 2)) as stage:
        node = Connection(stage.url, quick())
        assert [node.value("/x"), node.value("/x")] == [1, 2]


def test_a_node_that_closed_what_was_kept_is_not_taken_for_lost() -> None:
    def close_after(asked: Asked) -> None:
        asked.answer(200, 1)
        asked.close_connection = True

    with Stage(close_after) as one, Stage(say(200, 2)) as two:
        nodes = Nodes([one.url, two.url], quick())
        assert [nodes.first(lambda node: node.value("/x")) for _ in range(20)] == [1] * 20
        assert len(one.asked) == 20


def test_what_was_said_unasked_is_nobodys_answer() -> None:
    said = threading.Event()

    def also_later(asked: Asked) -> None:
        asked.answer(200, 1)
        asked.wfile.write(head("HTTP/1.1 408 Request Timeout", "Content-Length: 0"))
        asked.wfile.flush()
        said.set()

    with Stage(also_later, say(200, 2)) as stage:
        node = Connection(stage.url, quick())
        first = node.value("/x")
        assert said.wait(5)
        assert [first, node.value("/x")] in ([1, 2], [2, 2]), "the second may have come with the first"


def test_refusals_are_what_they_were() -> None:
    with Stage(refuse(404, "NotFound", "map_not_found", map="m"), refuse(401, "Denied", "token_missing")) as stage:
        node = Connection(stage.url, quick())
        with pytest.raises(NotFound) as caught:
            node.value("/x")
        assert (caught.value.kind, caught.value.values) == ("map_not_found", {"map": "m"})
        with pytest.raises(Denied):
            node.value("/x")
        assert len(stage.asked) == 2


def test_a_node_that_asks_for_a_moment_is_asked_again() -> None:
    busy = {"error": "Unavailable", "kind": "node_starting", "message": "wait", "hint": None, "values": {}}
    with Stage(say(503, busy, Retry_After="0"), say(200, 3)) as stage:
        assert Connection(stage.url, quick()).value("/x") == 3


def test_nobody_there_and_silence_are_told_as_ever() -> None:
    with pytest.raises(Unavailable) as caught:
        Connection(f"http://127.0.0.1:{free_port()}", quick()).value("/x")
    assert (caught.value.kind, caught.value.values["reason"]) == ("node_unreachable", "Connection refused")
    with Stage(silence()) as stage, pytest.raises(Unavailable) as late:
        Connection(stage.url, quick(read_timeout="100ms", send_part_attempts=1)).value("/x")
    assert (late.value.values["reason"], len(stage.asked)) == ("no answer in time", 1)


@pytest.mark.parametrize("path", ["/x y", "/x\r\nHost: else", "/é"])
def test_what_would_be_another_request_is_not_sent(path: str) -> None:
    with Stage(say(200, 1)) as stage:
        assert ShortLines(stage.url, quick()).ask(path, {}) is None
        assert ShortLines(stage.url, quick()).ask("/x", {"Authorization": "Bearer a\r\nb: c"}) is None
        assert not stage.asked


def test_threads_share_lines_and_each_has_its_own_answer() -> None:
    with Stage(lambda asked: asked.answer(200, asked.path)) as stage:
        node = Connection(stage.url, quick())
        paths = [f"/{number}" for number in range(300)]
        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(node.value, paths)) == paths
        node.close()
        assert node.value("/again") == "/again"


def _ask(node: Connection, told: Any) -> None:
    told.put([node.value("/child") for _ in range(20)])


def test_sockets_stay_in_their_process() -> None:
    with Stage(lambda asked: asked.answer(200, asked.path)) as stage:
        node = Connection(stage.url, quick())
        assert node.value("/parent") == "/parent"
        assert pickle.loads(pickle.dumps(node)).value("/copy") == "/copy"
        context = multiprocessing.get_context("fork")
        told = context.SimpleQueue()
        child = context.Process(target=_ask, args=(node, told))
        child.start()
        assert [node.value("/parent") for _ in range(20)] == ["/parent"] * 20
        assert told.get() == ["/child"] * 20
        child.join(20)


def test_tls_and_names_that_are_no_ascii_go_by_urllib3() -> None:
    assert not ShortLines("https://localhost:1", quick()).usable
    assert not ShortLines("http://bücher.example:1", quick()).usable
    assert ShortLines("http://[::1]:1", quick()).usable
