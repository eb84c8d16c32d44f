"""The tokens of a pond in a bucket: one row of its space, for all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.json_forms import to_json
from millpond.maps.model.keyspaces import TOKENS
from millpond.nodes.tokens import LISTED, TokenList

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.kernel.space import Transaction
    from millpond.settings import TokenSetting
    from millpond.stores.bucket_space.space import BucketSpace

__all__ = ("TokenRow",)


class TokenRow(TokenList):
    """The tokens in the space of a pond. They are read without asking the bucket: each request looks at them."""

    def __init__(self, space: BucketSpace) -> None:
        self._space = space

    @property
    def where(self) -> str:
        return self._space.objects.where

    def version(self) -> bytes | None:
        with self._space.latest() as tx:
            return tx.get(TOKENS.packed)

    def read(self) -> list[TokenSetting]:
        return self._tokens(self.version())

    def _change(self, edit: Callable[[list[TokenSetting]], list[TokenSetting]]) -> None:
        def change(tx: Transaction) -> None:
            tx.put(TOKENS.packed, to_json(edit(self._tokens(tx.get(TOKENS.packed)))))

        self._space.write(change)

    def _tokens(self, row: bytes | None) -> list[TokenSetting]:
        return [] if row is None else LISTED.stored(
            row, "the row of tokens cannot be read", kind="tokens_damaged", where=self.where,
            hint="stop the nodes, look for what else is damaged: millpond verify",
        )  # fmt: skip
