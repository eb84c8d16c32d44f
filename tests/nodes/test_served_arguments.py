"""A client of nodes refuses an argument of another type in our words, as a pond in a folder does."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.errors import MillpondError
from tests.unit.test_argument_types import CALLS, filled

if TYPE_CHECKING:
    from collections.abc import Callable

HERE_ALONE = {"manifest", "batches", "newest", "maps to wait for", "timeout"}
"""Calls that a client does not have."""


def test_no_argument_of_another_type_ends_in_an_error_that_is_not_ours(serve: Callable[..., Any]) -> None:
    with millpond.open(serve().url) as pond:
        filled(pond)
        for name in CALLS.keys() - HERE_ALONE:
            call, odd = CALLS[name]
            for value in odd:
                with suppress(MillpondError):  # a text of what goes into a query may be one that is meant
                    call(pond, value)
        for act, argument in (
            (lambda: pond.create_map("x", condense=b"30d"), "condense"),
            (lambda: pond.refs.commit("x", object()), "message"),
            (lambda: pond.map("m").load([{"key": "a", "value": 1}], source=5), "source"),
            (lambda: pond.refs.restore("main", maps="m"), "maps"),
        ):
            with pytest.raises(MillpondError) as refused:
                act()
            assert (refused.value.kind, refused.value.values["argument"]) == ("argument_type", argument)
