"""Raw memory for compiled kernels: load and store at an address, as one machine instruction each.

Arrow buffers, memory-mapped or not, are read where they lie: a kernel takes the buffer's address and nothing
is wrapped or copied. Byte order is the machine's, which Arrow files on disk share (little-endian).
`arrays/intrinsics.py` says what each one does.

Invariants, all the caller's to keep:
* The owner of the memory outlives the call: the Python side holds the Arrow array until the kernel returns.
* An address plus the width read or written lies within its buffer.
"""

from millpond.arrays.compiled import kernel_of

__all__ = (
    "chosen", "copy_bytes", "load_i32", "load_i64", "load_u8", "load_u32", "load_u64", "multiply_fold", "prefetch",
    "same_bytes", "store_i32", "store_i64", "store_u8", "store_u64", "swap_u64",
)  # fmt: skip

_MACHINE = "millpond.arrays.intrinsics"

load_u8 = kernel_of(_MACHINE, "load_u8")
load_i32 = kernel_of(_MACHINE, "load_i32")
load_u32 = kernel_of(_MACHINE, "load_u32")
load_i64 = kernel_of(_MACHINE, "load_i64")
load_u64 = kernel_of(_MACHINE, "load_u64")
store_u8 = kernel_of(_MACHINE, "store_u8")
store_i32 = kernel_of(_MACHINE, "store_i32")
store_i64 = kernel_of(_MACHINE, "store_i64")
store_u64 = kernel_of(_MACHINE, "store_u64")
chosen = kernel_of(_MACHINE, "chosen")
prefetch = kernel_of(_MACHINE, "prefetch")
multiply_fold = kernel_of(_MACHINE, "multiply_fold")
swap_u64 = kernel_of(_MACHINE, "swap_u64")
same_bytes = kernel_of(_MACHINE, "same_bytes")
copy_bytes = kernel_of(_MACHINE, "copy_bytes")
