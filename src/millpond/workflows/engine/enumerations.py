"""The enumerations of the client, with their values as plain attributes: a command reads some forty of them.

The client's own look-up of `LHStatus.RUNNING` fails first, then searches the descriptor: thirty times as long.
"""

from __future__ import annotations

import littlehorse.model
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

__all__ = ("bind_values",)


def bind_values() -> None:
    """Set the values of each enumeration as attributes of it. They are the same; doing so twice is harmless."""
    for enumeration in vars(littlehorse.model).values():
        if isinstance(enumeration, EnumTypeWrapper):
            for name, number in enumeration.items():
                setattr(enumeration, name, number)
