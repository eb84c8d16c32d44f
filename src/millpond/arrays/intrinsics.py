"""Loads, stores and other single instructions, made with numba: what the doors of `arrays/memory.py` lead to."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

__all__ = (
    "chosen", "copy_bytes", "load_i32", "load_i64", "load_u8", "load_u32", "load_u64", "multiply_fold", "prefetch",
    "same_bytes", "store_i32", "store_i64", "store_u8", "store_u64", "swap_u64",
)  # fmt: skip

_Typed = tuple[Any, Any]


def _pointer(builder: Any, address: Any, width: int) -> Any:
    return builder.inttoptr(address, ir.IntType(width).as_pointer())


def _loader(width: int, kind: Any) -> Any:
    @intrinsic
    def load(context: Any, address: Any) -> _Typed:
        """The value at `address`, which need not be aligned."""

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(_pointer(builder, arguments[0], width), align=1)

        return kind(types.int64), build

    return load


def _storer(width: int, kind: Any) -> Any:
    @intrinsic
    def store(context: Any, address: Any, value: Any) -> _Typed:
        """Put `value` at `address`, which need not be aligned."""

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], _pointer(builder, arguments[0], width), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), build

    return store


load_u8 = _loader(8, types.uint8)
load_i32 = _loader(32, types.int32)
load_u32 = _loader(32, types.uint32)
load_i64 = _loader(64, types.int64)
load_u64 = _loader(64, types.uint64)
store_u8 = _storer(8, types.uint8)
store_i32 = _storer(32, types.int32)
store_i64 = _storer(64, types.int64)
store_u64 = _storer(64, types.uint64)


@intrinsic
def prefetch(context: Any, address: Any) -> _Typed:
    """Ask the processor to bring the cache line at `address`; harmless wherever it points."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
            builder.module, kind, "llvm.prefetch.p0"
        )
        pointer = builder.inttoptr(arguments[0], byte)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), build


@intrinsic
def chosen(context: Any, condition: Any, yes: Any, no: Any) -> _Typed:
    """One of two numbers, without a branch: of a condition that the processor would guess wrongly half the time."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        select = builder.select(*arguments)
        # Else LLVM makes a branch of it where the condition is of a number that was just loaded.
        select.set_metadata("unpredictable", builder.module.add_metadata([]))
        return select

    return types.int64(types.boolean, types.int64, types.int64), build


@intrinsic
def multiply_fold(context: Any, a: Any, b: Any) -> _Typed:
    """The upper and the lower half of the 128-bit product, xor-ed."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        upper = builder.trunc(builder.lshr(product, wide(64)), word)
        return builder.xor(upper, builder.trunc(product, word))

    return types.uint64(types.uint64, types.uint64), build


@intrinsic
def swap_u64(context: Any, value: Any) -> _Typed:
    """The eight bytes in reverse."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), build


@njit(nogil=True, inline="always")
def same_bytes(a, b, length):  # type: ignore[no-untyped-def]
    """True when `length` bytes at the two addresses agree."""
    k, last = 0, length - 8
    while k < last:
        if load_u64(a + k) != load_u64(b + k):
            return False
        k += 8
    if last >= 0:  # the last eight overlap those before: no byte is compared alone
        return load_u64(a + last) == load_u64(b + last)
    while k < length:
        if load_u8(a + k) != load_u8(b + k):
            return False
        k += 1
    return True


@njit(nogil=True, inline="always")
def copy_bytes(target, source, length):  # type: ignore[no-untyped-def]
    """Copy `length` bytes between addresses that do not overlap."""
    k, last = 0, length - 8
    while k < last:
        store_u64(target + k, load_u64(source + k))
        k += 8
    if last >= 0:
        store_u64(target + last, load_u64(source + last))
    else:
        while k < length:
            store_u8(target + k, load_u8(source + k))
            k += 1
