"""Forms: the field `content` of a `multipart/form-data` body, streamed.

The media type is the field's own. The fields before it are read as text, and those after it are skipped.

Invariants:
* Memory holds a piece of the body, the head of one field, and a bounded text of the fields before `content`.
* A body that ends within a field, or has no `content`, is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from millpond.server.lakefs.errors import ApiError
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE

__all__ = ("FormContent", "boundary_of")

_FIELD = "content"
HEAD_BYTES_MAX = 16 << 10
_FIELDS_BYTES_MAX = 64 << 10


def boundary_of(content_type: str) -> bytes | None:
    """The boundary of a form; None for a body that is no form.

    Raises: `ApiError` for a form without one.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        return None
    boundary = options.get(b"boundary")
    if not boundary:
        raise ApiError(400, "request body has an error: the form has no boundary")
    return boundary


class FormContent:
    """The field `content` of a form: its media type, the name of its file, and its bytes as they come."""

    def __init__(self, boundary: bytes, chunks: Iterator[bytes]) -> None:
        """Read up to the field.

        Raises: `ApiError`.
        """
        self.content_type, self.file_name = DEFAULT_CONTENT_TYPE, ""
        self._texts: dict[str, bytes] = {}
        self._texts_bytes = 0
        self._field = ""
        self._chunks = chunks
        self._held: deque[bytes] = deque()
        self._inside = self._seen = self._ended = False
        self._head: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._parser = MultipartParser(boundary, {
            "on_part_begin": self._begin, "on_header_field": self._add_name, "on_header_value": self._add_value,
            "on_header_end": self._end_header, "on_headers_finished": self._end_head, "on_part_data": self._add_data,
            "on_part_end": self._end_part, "on_end": self._end,
        })  # fmt: skip
        while not self._seen:
            self._feed()

    @property
    def fields(self) -> dict[str, str]:
        """The fields before `content`."""
        return {name: text.decode(errors="replace") for name, text in self._texts.items()}

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the field; the rest of the form is read after them.

        Raises: `ApiError` when the form does not end.
        """
        while True:
            while self._held:
                yield self._held.popleft()
            if self._ended:
                return
            self._feed()

    def _feed(self) -> None:
        piece = next(self._chunks, None)
        if piece is None:
            raise ApiError(
                400, "request body has an error: the form does not end" if self._seen
                else f'request body has an error: the form has no field "{_FIELD}"',
            )  # fmt: skip
        try:
            self._parser.write(piece)
        except MultipartParseError as error:
            raise ApiError(400, f"request body has an error: the form is not understood: {error}") from None
        if self._ended and not self._seen:
            raise ApiError(400, f'request body has an error: the form has no field "{_FIELD}"')

    # -- calls of the parser --------------------------------------------------------------------------

    def _begin(self) -> None:
        self._head = {}

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name = self._grown(self._name, data[start:end])

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value = self._grown(self._value, data[start:end])

    @staticmethod
    def _grown(text: bytes, piece: bytes) -> bytes:
        if len(text) + len(piece) > HEAD_BYTES_MAX:
            raise ApiError(400, "request body has an error: the head of a field is too long")
        return text + piece

    def _end_header(self) -> None:
        self._head[self._name.lower()] = self._value
        self._name = self._value = b""

    def _end_head(self) -> None:
        _, options = parse_options_header(self._head.get(b"content-disposition", b""))
        self._field = options.get(b"name", b"").decode(errors="replace")
        self._inside = self._field == _FIELD and not self._seen
        if self._inside:
            self._seen = True
            self.file_name = options.get(b"filename", b"").decode(errors="replace")
            self.content_type = self._head.get(b"content-type", b"").decode("latin-1") or DEFAULT_CONTENT_TYPE

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._inside:
            self._held.append(data[start:end])
        elif not self._seen and self._field:
            self._texts_bytes += end - start + (0 if self._field in self._texts else len(self._field))
            if self._texts_bytes > _FIELDS_BYTES_MAX:
                raise ApiError(400, f'request body has an error: the fields before "{_FIELD}" are too long')
            self._texts[self._field] = self._texts.get(self._field, b"") + data[start:end]

    def _end_part(self) -> None:
        self._inside = False

    def _end(self) -> None:
        self._ended = True
