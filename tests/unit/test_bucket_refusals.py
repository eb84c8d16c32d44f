"""Refusals of a bucket: each is an error that names the object and the way out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from millpond.errors import Denied, Invalid, MillpondError, NotFound, Unavailable, Uncertain
from millpond.stores.objects import ObjectStore, open_objects
from millpond.stores.objects.bucket import BucketObjects, endpoint_set
from millpond.stores.objects.bucket_errors import bucket_error
from millpond.stores.objects.profile import profile_settings
from tests.unit.test_objects import ACTS, failure

pytestmark = pytest.mark.usefixtures("process")

CREDENTIALS = """
[default]
aws_access_key_id = first
aws_secret_access_key = secret

[lab]
aws_access_key_id = key
aws_secret_access_key = a-secret-that-nobody-prints
aws_session_token = token
"""
CONFIG = """
[profile lab]
region = eu-west-3
endpoint_url = https://lab:9000
s3 =
    max_concurrent_requests = 20

[profile sso]
sso_session = us
"""
PROLOG = '<?xml version="1.0" encoding="UTF-8"?>\n'
SECRET = "a-secret-that-nobody-prints"
DELETED = '<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{}</DeleteResult>'


@contextmanager
def answering(
    status: int, body: str, host: str = "127.0.0.1", signed: list[str | None] | None = None, cut: int = 0
) -> Iterator[ObjectStore]:  # fmt: skip
    """A bucket whose server answers everything so; what each request says of its body goes to `signed`.

    The first `cut` answers end after half of them.
    """
    whole = count(-cut)

    class Handler(BaseHTTPRequestHandler):
        """The same for every method."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if signed is not None:
                signed.append(self.headers["x-amz-content-sha256"])
            content = b"" if self.command == "HEAD" else f"{PROLOG}{body}".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if next(whole) < 0:
                content, self.close_connection = content[: len(content) // 2], True
            self.wfile.write(content)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield open_objects(
                "s3://bucket/place", endpoint=f"http://{host}:{server.server_port}", access_key_id="key",
                secret_access_key=SECRET, region="us-east-1", allow_http=True, retry_config={"max_retries": 0},
            )  # fmt: skip
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("host", "said", "bodies_hashed"),
    [
        ("127.0.0.1", None, False), ("127.0.0.1", "false", True),
        ("127.0.0.2", None, True), ("127.0.0.2", "true", False),  # as if it were another machine
    ],
)  # fmt: skip
def test_bodies_are_hashed_where_others_may_change_them(
    host: str, said: str | None, bodies_hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_UNSIGNED_PAYLOAD", raising=False)
    if said is not None:
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", said)
    signed: list[str | None] = []
    with answering(403, "", host, signed) as objects:
        failure("put", objects)
    assert signed and all((of != "UNSIGNED-PAYLOAD") == bodies_hashed for of in signed)


def refused(act: str, status: int, code: str) -> MillpondError:
    with answering(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>") as objects:
        error = failure(act, objects)
    assert SECRET not in str(error) and error.values["bucket"] == "bucket" and error.hint
    return error


@pytest.mark.sample(20)
@pytest.mark.parametrize("act", sorted(ACTS.keys() - {"size"}))
@pytest.mark.parametrize(
    ("status", "code", "class_", "hint"),
    [
        (403, "RequestTimeTooSkewed", Denied, "set the clock of this machine"),
        (403, "InvalidObjectState", Denied, "restore it in the bucket"),
        (400, "ExpiredToken", Denied, "AWS_SESSION_TOKEN"),
        (400, "AuthorizationHeaderMalformed", Invalid, "AWS_REGION"),
        (403, "QuotaExceeded", Unavailable, "make room"),
        (507, "XMinioStorageFull", Unavailable, "make room"),
        (501, "NotImplemented", Invalid, "conditional writes"),
        (400, "InvalidRequest", Unavailable, "see what its reason names"),
    ],
)
def test_a_refusal_says_what_helps(act: str, status: int, code: str, class_: type[MillpondError], hint: str) -> None:
    """Nothing of it was done, so it is never uncertain; and the network is not to blame."""
    error = refused(act, status, code)
    assert isinstance(error, class_) and not isinstance(error, Uncertain)
    assert hint in str(error) and "does not answer" not in str(error)


@pytest.mark.parametrize(
    ("act", "right"),
    [
        ("get", "s3:GetObject"), ("size", "s3:ListBucket"), ("put", "s3:PutObject"), ("put_stream", "s3:PutObject"),
        ("swap", "s3:PutObject"), ("delete", "s3:DeleteObject"), ("list", "s3:ListBucket"), ("level", "s3:ListBucket"),
    ],
)  # fmt: skip
def test_a_missing_right_is_named(act: str, right: str) -> None:
    error = refused(act, 403, "AccessDenied")
    if act == "delete":  # as servers refuse one of many
        one = "<Error><Key>place/b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        with answering(200, DELETED.format(one)) as objects:
            error = failure(act, objects)
        assert error.values["object"] == "place/b" and right in str(error.hint)
        error = refused(act, 403, "AccessDenied")  # as they refuse the request
    assert isinstance(error, Denied) and right in str(error.hint)
    assert right in str(error.values["verb"]) and "a right to the bucket is missing" in str(error)
    if act != "size":  # the answer to it has no code
        assert "verb" not in refused(act, 403, "InvalidAccessKeyId").values


@pytest.mark.parametrize("act", sorted(ACTS.keys() - {"put_stream", "size", "swap"}))
def test_an_answer_that_is_cut_is_asked_for_again(act: str) -> None:
    with answering(403, "<Error><Code>AccessDenied</Code></Error>", cut=2) as objects:
        assert isinstance(failure(act, objects), Denied)


def test_an_answer_to_a_stream_that_is_cut_is_uncertain() -> None:
    """Its chunks are gone, and what was done is not known."""
    with answering(403, "<Error><Code>AccessDenied</Code></Error>", cut=2) as objects:
        error = failure("put_stream", objects)
    assert type(error) is Uncertain and error.kind == "objects_uncertain" and "store it again" in str(error.hint)


@pytest.mark.parametrize("act", sorted(ACTS.keys() - {"swap"}))
def test_a_server_that_is_busy_is_unavailable(act: str) -> None:
    """Also with a status that speaks of a conflict, where nothing was compared."""
    for status, code in ((503, "SlowDown"), (409, "OperationAborted")):
        assert type(refused(act, status, code)) is Unavailable


@pytest.mark.parametrize("name", ["a//b", "../b", "a\nb", "a\x01b"])
def test_an_object_of_a_strange_name_is_named_where_it_is_listed(name: str) -> None:
    row = "<Contents><Key>place/{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size></Contents>"
    listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{row.format(name)}</ListBucketResult>"
    for act in ("list", "level"):
        with answering(200, listing) as objects:
            error = failure(act, objects)
        assert isinstance(error, Invalid) and error.kind == "source_name"
        assert repr(f"place/{name}") in str(error) and "copy the object to a name without" in str(error.hint)


def test_an_object_that_goes_while_it_is_read_again_is_missing() -> None:
    said = (
        "Generic S3 error: Object at location a not found: Error performing GET http://s3/a in 1ms, after 1 retries - "
    )
    error = GenericError(said + "Server returned non-2xx status code: 404 Not Found: <Code>NoSuchKey</Code>")
    assert isinstance(bucket_error("a", "s3://b", "b", error, conditional=False), NotFound)


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables that name two files with profiles."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(CREDENTIALS)
    (tmp_path / "config").write_text(CONFIG)
    named = {"AWS_SHARED_CREDENTIALS_FILE": tmp_path / "credentials", "AWS_CONFIG_FILE": tmp_path / "config"}
    for name, file in named.items():
        monkeypatch.setenv(name, str(file))
    return {name: str(file) for name, file in named.items()}


def test_a_profile_has_what_the_environment_lacks(profiles: dict[str, str]) -> None:
    lab = profiles | {"AWS_PROFILE": "lab"}
    server = {"region": "eu-west-3", "endpoint": "https://lab:9000"}
    keys = {"access_key_id": "key", "secret_access_key": SECRET, "session_token": "token"}
    assert profile_settings(lab) == server | keys
    assert profile_settings(profiles) == {"access_key_id": "first", "secret_access_key": "secret"}
    assert profile_settings(lab | {"AWS_ACCESS_KEY_ID": "own", "AWS_REGION": "x"}) == {"endpoint": "https://lab:9000"}
    assert profile_settings(lab | {"AWS_ENDPOINT_URL": "x", "AWS_DEFAULT_REGION": "x"}) == keys
    nowhere = {name: f"{file}-not-there" for name, file in profiles.items()}
    assert profile_settings(nowhere) == {}
    for name, words in (("nobody", "no such profile"), ("sso", "export-credentials")):
        with pytest.raises(Invalid, match=words):
            profile_settings(profiles | {"AWS_PROFILE": name})
    Path(profiles["AWS_CONFIG_FILE"]).write_text(f"secret_of_a_line_without_a_section {SECRET}")
    with pytest.raises(Invalid, match="cannot be read") as odd:
        profile_settings(lab)
    assert SECRET not in str(odd.value)


def test_requests_are_signed_by_the_profile(profiles: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert endpoint_set() == "https://lab:9000"
    url = BucketObjects("s3://bucket/place").presigned("a", 60)
    assert url.startswith("https://lab:9000/bucket/place/a") and "key%2F" in url and "eu-west-3" in url
