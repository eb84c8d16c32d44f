"""Errors of a node tell a caller nothing of its disk, and nothing of maps that the caller may not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millpond.errors import Corrupt
from millpond.nodes.tokens import TokenFile, hash_token
from millpond.server.wire import relative
from tests.nodes.conftest import Served

TOKENS = [
    {"name": name, "sha256": hash_token(name), "rights": {"read": [pattern]}}
    for name, pattern in (("some", "our*"), ("all", "*"))
]  # fmt: skip


def test_an_absent_map_names_no_map_of_others(serve: Callable[..., Served]) -> None:
    node = serve(tokens=TOKENS)
    for name in ("ours", "oursecret_payroll", "payroll"):
        node.pond.create_map(name, kind="state", value="long")
    paths = (
        "/v1/maps/ourz",
        "/v1/maps/ourz/get?key=a",
        "/v1/maps/ourz/snapshot",
        "/v1/parts?map=ourz",
        "/v1/log?map=ourz",
    )
    for path in paths:
        answer = node.get(path, headers={"Authorization": "Bearer some"})
        assert b"payroll" not in answer.body, (path, answer.body)
    whole = node.get("/v1/maps/ourz", headers={"Authorization": "Bearer all"})
    assert (whole.status, "ours" in whole.json()["hint"]) == (404, True)


def test_no_error_names_a_place_on_the_disk(node: Served) -> None:
    """A file of tokens that cannot be read, a part whose manifest is damaged."""
    node.pond.create_map("m", kind="state", value="long")
    folder = str(node.pond.folder).encode()
    part = "0" * 32
    place = node.pond.folder / "uploads" / part / "part"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("[")
    answer = node.post("/v1/loads", {"load_id": "l", "parts": [part]})
    assert answer.status == 500
    assert folder not in answer.body
    assert answer.json()["values"]["folder"] == f"uploads/{part}", "the operator finds it"
    TokenFile(node.pond.folder).path.write_text("[")
    answer = node.get("/v1/maps")
    assert (answer.json()["kind"], answer.json()["values"]["file"]) == ("tokens_damaged", "tokens.json")
    assert folder not in answer.body


def test_texts_and_places_are_relative() -> None:
    folder = Path("/srv/pond")
    error = Corrupt("x", kind="y", file=folder / "a", reason="'/srv/pond/a' and /srv/pond", other=Path("/etc/x"), n=1)
    assert relative(dict(error.values), folder) == {"file": "a", "reason": "'a' and .", "other": "x", "n": 1}
