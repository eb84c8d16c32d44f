"""Recorded requests, sent again, and their answers compared with the recorded ones.

    for case in requests():
        answer = replay.send(case)          # ids of earlier answers are filled in
    differences(recorded, answer, words)    # the fields that differ; `words` maps `<id3>` to an id of ours

In a recorded answer ids, times and addresses are words: `<id1>` stands for one id wherever it appears, `<time>` for any
time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.conftest import Answer, Server

DATA = Path(__file__).parents[1] / "data" / "lakefs"
COMPARED = (
    "content-type", "etag", "content-range", "accept-ranges", "location", "content-length", "last-modified",
    "x-content-type-options", "allow", "content-disposition", "x-lakefs-meta-colour",
)  # fmt: skip
REPOSITORY, TAG, NAMESPACE = "probe-repository", "probe-tag", "local://probe"
_SOMEWHERE = "<somewhere in the repository's namespace>"
_SCHEMA = re.compile(r"\nSchema:\n.*", re.DOTALL)
_FIELD = re.compile(r"\$\{([^|}]+)\|(\w+)(?::(\d+))?\}")
_ID = re.compile(r"<id\d+>")


def lines(name: str) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


@dataclass
class Replay:
    """Requests on one repository, and the answers so far, by case."""

    server: Server
    repository: str = REPOSITORY
    answers: dict[str, Answer] = field(default_factory=dict)

    def send(self, case: dict[str, Any]) -> Answer:
        """Send a request."""
        headers = dict(case.get("headers", {}))
        headers["Content-Type"] = case.get("type", "application/json")
        if case.get("who") == "anonymous":
            headers["Authorization"] = ""
        pair = (self.server.access_key, "wrong") if case.get("who") == "wrong" else None
        body: bytes | None = case["text"].encode() if "text" in case else None
        if "json" in case:
            body = json.dumps(self.filled(case["json"])).encode()
        if body is None and case["method"] in ("POST", "PUT"):
            body = b""
        path = self.filled(case["path"])
        answer = self.server.call(case["method"], path, body, pair=pair, headers=headers)
        self.answers[case["case"]] = answer
        return answer

    def filled(self, value: Any) -> Any:
        """A value of a recorded request, with names and earlier answers in their places."""
        if isinstance(value, dict):
            if "$" in value:
                return json.loads(self.answers[value["$"]].body)
            return {name: self.filled(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(inner) for inner in value]
        if not isinstance(value, str):
            return value
        value = value.replace("<repo>", self.repository).replace("<tag>", TAG).replace("<ns>", NAMESPACE)
        return _FIELD.sub(self._field, value)

    def _field(self, found: re.Match[str]) -> str:
        try:
            text = str(json.loads(self.answers[found[1]].body)[found[2]])
        except (ValueError, KeyError):
            return "0" * 64  # the earlier request failed: the answer to this one will tell
        return text[: int(found[3])] if found[3] else text


def plain(answer: Answer) -> dict[str, Any]:
    """An answer with the recorded words in place of what each server may choose, but for ids."""
    headers = {name: _words(answer.headers[name]) for name in COMPARED if name in answer.headers}
    if "last-modified" in headers:
        headers["last-modified"] = "<date>"
    if headers.get("content-type", "").startswith("application/json"):
        headers.pop("content-length", None)
    text = _words(answer.body.decode("utf-8", "replace"))
    try:
        body: Any = _chosen(json.loads(text))
    except ValueError:
        body = text[:400]
    return {"status": answer.status, "headers": headers, "body": body}


def _words(text: str) -> str:
    text = text.replace(REPOSITORY, "<repo>").replace(TAG, "<tag>").replace(NAMESPACE, "<ns>")
    text = re.sub(r'https?://[^"]*[?&](X-Amz-|sig=|signature=)[^"]*', "<signed url>", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<=[:,\[ ])1[6-9]\d{8}\b", '"<time>"', text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", "<instant>", text)


def _chosen(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _chosen(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_chosen(inner, name) for inner in value]
    if isinstance(value, str) and (name.endswith("_location") or name == "physical_address") and "<repo>" in value:
        return _SOMEWHERE
    if name in ("run_id", "upload_id"):
        return "<run>"
    return value


def agree(theirs: Any, ours: Any, words: dict[str, str]) -> bool:
    """True when two values are the same; a word for an id is bound to the id that stands in its place first."""
    if isinstance(theirs, dict):
        return (
            isinstance(ours, dict) and theirs.keys() == ours.keys()
            and all(agree(theirs[name], ours[name], words) for name in theirs)
        )  # fmt: skip
    if isinstance(theirs, list):
        return (
            isinstance(ours, list) and len(theirs) == len(ours)
            and all(agree(left, right, words) for left, right in zip(theirs, ours, strict=True))
        )  # fmt: skip
    if isinstance(theirs, str) and isinstance(ours, str):
        return _agree_in_words(_SCHEMA.sub("", theirs), ours, words)
    return bool(theirs == ours)


def _agree_in_words(theirs: str, ours: str, words: dict[str, str]) -> bool:
    names = _ID.findall(theirs)
    pattern = "([0-9a-f]{64})".join(re.escape(part) for part in _ID.split(theirs))
    found = re.fullmatch(pattern, ours, re.DOTALL)
    if found is None:
        return False
    bound = dict(words)
    for name, id_ in zip(names, found.groups(), strict=True):
        if bound.setdefault(name, id_) != id_:
            return False
    words.update(bound)
    return True


def differences(recorded: dict[str, Any], answer: Answer, words: dict[str, str]) -> dict[str, Any]:
    """The fields in which an answer differs from the recorded one, as they are here."""
    ours = plain(answer)
    return {name: ours[name] for name in ("status", "headers", "body") if not agree(recorded[name], ours[name], words)}
