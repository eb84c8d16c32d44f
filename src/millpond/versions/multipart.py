"""Multipart uploads: an object that comes in parts, in any order and again, and becomes one when it is complete.

    create ─ put_part … ─ complete ─▶ parts joined under the upload's address ─▶ entry staged, upload over: one write
                          abort    ─▶ upload over, parts deleted

    data/<day>/<ms>-<upload>            the address of the object, named when the upload began
    data/<day>/<ms>-<upload><number>    a part; a part that comes again takes the place of the one before

Invariants:
* Parts and the object stream: memory holds a chunk of one of them.
* The object is staged with its upload's end in one write: all of it, or nothing.
* What belongs to an upload that is open stays. An upload that nobody completed for `OPEN_MS_MAX` is over: the next
  collection of garbage deletes its row, and its parts with it.
* The checksum is S3's ETag: the MD5 of the parts' MD5s, a dash, and the number of parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from millpond.errors import Invalid, NotFound
from millpond.json_forms import JsonForm
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.versions.keyspaces import UPLOAD
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import data_name, read_bytes, upload
from millpond.versions.repository_context import RepositoryContext, stated
from millpond.versions.staging.branches import get_branch
from millpond.versions.staging.writes import Condition, put_entry

__all__ = ("OPEN_MS_MAX", "PARTS_MAX", "OpenUpload", "UploadedPart", "Uploads", "open_uploads")

OPEN_MS_MAX = 7 * 24 * 3_600_000
"""The time in which an upload is to be complete."""
PARTS_MAX = 10_000
PARTS_DELETED = 500


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """A multipart upload that is not complete."""

    id: str
    branch: str
    path: str
    address: str
    created_ms: int
    content_type: str = DEFAULT_CONTENT_TYPE
    metadata: dict[str, str] = field(default_factory=dict)

    def part_name(self, number: int) -> str:
        """The name of a part.

        Raises: `Invalid` for a number that no part has.
        """
        if not 1 <= number <= PARTS_MAX:
            raise Invalid("not the number of a part", kind="part_number", number=number, hint=f"1 to {PARTS_MAX:,}")
        return f"{self.address}{number:04x}"


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part that was stored."""

    number: int
    size: int
    checksum: str


_FORM = JsonForm(OpenUpload)


def open_uploads(tx: ReadTransaction, uid: str) -> Iterator[OpenUpload]:
    """The uploads of a repository that are not complete.

    Raises: `Corrupt`.
    """
    for key, row in tx.scan(UPLOAD[uid].range()):
        yield _parse(row, str(UPLOAD[uid].unpack(key)[0]))


def _parse(row: bytes, id_: str) -> OpenUpload:
    return _FORM.stored(row, "an upload cannot be read", kind="upload_damaged", upload=id_)


class Uploads:
    """The multipart uploads to a branch.

    Of one that is over every method raises `NotFound`, kind `upload_not_found`.
    """

    def __init__(self, context: RepositoryContext, branch: str) -> None:
        self._context = context
        self._branch = branch

    def create(
        self, path: str, *, content_type: str = DEFAULT_CONTENT_TYPE, metadata: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> OpenUpload:  # fmt: skip
        """Begin an upload to a path.

        Raises: `NotFound`, `Denied` for the branch; `Invalid` for the path.
        """
        check_path(path)
        context = self._context
        id_, now = context.clock.random_id(), context.clock.now_ms()
        upload = OpenUpload(
            id_, self._branch, path, data_name(now, id_), now, content_type, dict(metadata or {})
        )  # fmt: skip

        row = stated(_FORM, upload)

        def create(tx: Transaction) -> None:
            context.check_writable(tx, self._branch, "write to", force=force)
            get_branch(tx, context.uid, self._branch)
            tx.put(UPLOAD[context.uid].pack(id_), row)

        context.space.write(create)
        step("versions.upload_created")
        return upload

    def get(self, upload_id: str) -> OpenUpload:
        """An upload that is not complete."""
        with self._context.space.read() as tx:
            return self._get(tx, upload_id)

    def _get(self, tx: ReadTransaction, upload_id: str) -> OpenUpload:
        row = tx.get(UPLOAD[self._context.uid].pack(upload_id))
        upload = None if row is None else _parse(row, upload_id)
        if upload is None or upload.branch != self._branch or self._is_over(upload):
            raise NotFound("upload not found", kind="upload_not_found", upload=upload_id, hint="begin a new one")
        return upload

    def _is_over(self, upload: OpenUpload) -> bool:
        return self._context.clock.now_ms() >= upload.created_ms + OPEN_MS_MAX

    def pending(self) -> list[OpenUpload]:
        """The uploads to the branch that are not complete, in the order of their ids."""
        with self._context.space.read() as tx:
            uploads = open_uploads(tx, self._context.uid)
            return [upload for upload in uploads if upload.branch == self._branch and not self._is_over(upload)]

    def put_part(
        self, upload_id: str, number: int, body: bytes | memoryview | Iterable[bytes | memoryview]
    ) -> UploadedPart:
        """Store a part, a chunk at a time, in place of one that came under its number before.

        Raises: `Invalid` for the number; `Unavailable` when the place is full.
        """
        stored = upload(self._context.data, self.get(upload_id).part_name(number), body)
        step("versions.part_uploaded")
        return UploadedPart(number, stored.size, stored.checksum)

    def complete(
        self, upload_id: str, parts: Sequence[tuple[int, str]] | None = None, *, if_absent: bool = False,
        if_match: str | None = None, content_type: str | None = None, metadata: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> Entry:  # fmt: skip
        """Join parts and stage the object; `parts` are numbers and MD5s, ascending; by default all that came.

        Raises: `Invalid`, kinds `part_missing`, `part_changed`, `part_order`; `Conflict` for a condition; `Denied`.
        """
        context = self._context
        open_upload = self.get(upload_id)
        joined = _Joined(context, open_upload, self._parts(open_upload) if parts is None else parts)
        condition = Condition(if_absent, if_match) if if_absent or if_match is not None else None
        stored = upload(context.data, open_upload.address, joined.chunks())
        step("versions.parts_joined")
        entry = Entry(
            open_upload.path, open_upload.address, stored.size, context.seconds(), joined.tag(),
            content_type or open_upload.content_type, dict(open_upload.metadata if metadata is None else metadata),
        )  # fmt: skip

        def end(tx: Transaction) -> None:
            self._get(tx, upload_id)
            tx.delete(UPLOAD[context.uid].pack(upload_id))

        put_entry(context, self._branch, entry, condition, force=force, besides=end)
        step("versions.upload_completed")
        context.after(lambda: self._delete_parts(open_upload))
        return entry

    def _parts(self, upload: OpenUpload) -> list[tuple[int, str]]:
        """The parts that came; their MD5s are not known."""
        start = len(upload.address)
        return [(int(name[start:], 16), "") for name in self._part_names(upload)]

    def _part_names(self, upload: OpenUpload) -> Iterator[str]:
        folder = upload.address.rpartition("/")[0]
        for info in self._context.data.list(folder, prefix=upload.address):
            if len(info.name) == len(upload.part_name(1)):
                yield info.name

    def abort(self, upload_id: str) -> None:
        """End an upload, and delete its parts."""
        upload = self.get(upload_id)
        self._context.space.write(lambda tx: tx.delete(UPLOAD[self._context.uid].pack(upload_id)))
        step("versions.upload_aborted")
        self._delete_parts(upload)

    def _delete_parts(self, upload: OpenUpload) -> None:
        names = list(self._part_names(upload))
        for at in range(0, len(names), PARTS_DELETED):
            self._context.data.delete(*names[at : at + PARTS_DELETED])


class _Joined:
    """Parts as one stream, each checked against the MD5 that its sender knows."""

    def __init__(self, context: RepositoryContext, upload: OpenUpload, parts: Sequence[tuple[int, str]]) -> None:
        numbers = [number for number, _ in parts]
        if not parts or any(later <= earlier for earlier, later in pairwise(numbers)):
            raise Invalid(
                "parts ascend by their numbers, and there is one at least", kind="part_order", upload=upload.id,
                parts=numbers[:10], hint="name each part once, in the order of the numbers",
            )  # fmt: skip
        self._context, self._upload = context, upload
        self._parts = [(number, tag.strip('"'), upload.part_name(number)) for number, tag in parts]
        self._digests: list[bytes] = []

    def chunks(self) -> Iterator[bytes]:
        """The bytes of all parts.

        Raises: `Invalid`.
        """
        for number, tag, name in self._parts:
            digest = hashlib.md5(usedforsecurity=False)
            try:
                size = self._context.data.size(name)
                for chunk in read_bytes(self._context.data, name, 0, size):
                    digest.update(chunk)
                    yield chunk
            except NotFound as error:
                raise Invalid(
                    "a part is missing", kind="part_missing", upload=self._upload.id, part=number,
                    hint="upload the part, then complete again",
                ) from error  # fmt: skip
            if tag and digest.hexdigest() != tag:
                raise Invalid(
                    "a part is not the one that was named", kind="part_changed", upload=self._upload.id, part=number,
                    expected=tag, found=digest.hexdigest(), hint="upload the part again",
                )  # fmt: skip
            self._digests.append(digest.digest())

    def tag(self) -> str:
        """The ETag of the object, once it was read."""
        joined = hashlib.md5(b"".join(self._digests), usedforsecurity=False).hexdigest()
        return f"{joined}-{len(self._digests)}"
