"""Rules for names of repositories, branches and tags.

>>> check_branch("fix-1")
'fix-1'
"""

from __future__ import annotations

import re

from millpond.errors import Invalid

__all__ = ("check_branch", "check_repository", "check_tag", "is_commit_id")

_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_BRANCH = re.compile(r"\w[-\w]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{64}")
_TAG_REFUSED = re.compile(r"[\x00-\x20\x7f^:?*\[\\]|\.\.|/|@\{")
NAME_BYTES_MAX = 512


def check_repository(name: object) -> str:
    """The name, when a repository may have it.

    Raises: `Invalid`.
    """
    if not isinstance(name, str) or not _REPOSITORY.fullmatch(name):
        raise Invalid(
            "not a name for a repository", kind="repository_name", name=repr(name),
            hint="3 to 63 lower-case letters, digits and hyphens; a letter or digit first",
        )  # fmt: skip
    return name


def check_branch(name: object) -> str:
    """The name, when a branch may have it.

    Raises: `Invalid`.
    """
    if not isinstance(name, str) or not _BRANCH.fullmatch(name) or len(name) > NAME_BYTES_MAX:
        raise Invalid(
            "not a name for a branch", kind="branch_name", name=repr(name),
            hint="letters, digits, _ and hyphens; no hyphen first",
        )  # fmt: skip
    return name


def check_tag(name: object) -> str:
    """The name, when a tag may have it.

    Raises: `Invalid`.
    """
    text = name if isinstance(name, str) else ""
    wrong = not text or text == "@" or text.endswith((".", ".lock")) or _TAG_REFUSED.search(text) is not None
    if wrong or len(text.encode(errors="replace")) > NAME_BYTES_MAX:
        raise Invalid(
            "not a name for a tag", kind="tag_name", name=repr(name),
            hint="no spaces, no control characters, none of ^:?*[\\ .. / @{ ; no . or .lock at the end",
        )  # fmt: skip
    return text


def is_commit_id(text: str) -> bool:
    """True for 64 hexadecimal digits: such a name means a commit, and no branch may have it."""
    return _COMMIT.fullmatch(text) is not None
