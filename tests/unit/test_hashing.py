"""The compiled hash agrees with the `xxhash` package, whatever the shape of the column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays.key_hash import fold32, hash_key
from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Invalid


def expected(keys: list[bytes]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(key) for key in keys]


def sample_keys() -> list[bytes]:
    rng = np.random.default_rng(7)
    return [rng.bytes(length) for length in [*range(301), 1_024, 10_240]]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_every_length_agrees_with_the_package(kind: pa.DataType) -> None:
    keys = sample_keys()
    assert hash_keys(pa.array(keys, kind)).tolist() == expected(keys)


def test_sliced_chunked_text_and_dictionary_columns() -> None:
    words = [f"schlüssel-{n}" * (n % 40) for n in range(500)]
    hashes = expected([word.encode() for word in words])
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        array = pa.array(words, kind)
        assert hash_keys(array).tolist() == hashes
        assert hash_keys(array[123:321]).tolist() == hashes[123:321]
    chunked = pa.chunked_array([pa.array(words[:7]), pa.array([], pa.string()), pa.array(words[7:])])
    assert hash_keys(chunked).tolist() == hashes
    encoded = pa.array([*words, *words]).dictionary_encode()
    assert hash_keys(encoded).tolist() == hashes + hashes
    assert hash_keys(encoded[3:9]).tolist() == hashes[3:9]


def test_nulls_and_empty_columns() -> None:
    assert hash_keys(pa.array([], pa.string())).tolist() == []
    assert hash_keys(pa.chunked_array([], pa.string())).tolist() == []
    assert hash_keys(pa.nulls(2)).shape == (2,)
    holes = hash_keys(pa.array(["a", None, "b"]))
    assert (holes[0], holes[2]) == (hash_key(b"a"), hash_key(b"b"))
    encoded = pa.array([None, "a", None]).dictionary_encode()
    assert hash_keys(encoded)[1] == hash_key(b"a")
    assert len(hash_keys(pa.array([None, None], pa.string()).dictionary_encode())) == 2


def test_whole_numbers_hash_as_their_text() -> None:
    assert hash_keys(pa.array([0, -5, 2**62])).tolist() == expected([b"0", b"-5", str(2**62).encode()])


def test_other_types_are_refused_with_the_way_out() -> None:
    with pytest.raises(Invalid, match="cast the column"):
        hash_keys(pa.array([1.5]))


@given(st.lists(st.binary(max_size=40)), st.integers(1, 64))
def test_weak_hash_keeps_the_low_bits(keys: list[bytes], bits: int) -> None:
    mask = (1 << bits) - 1
    assert hash_keys(pa.array(keys, pa.binary()), bits=bits).tolist() == [hashed & mask for hashed in expected(keys)]
    assert [hash_key(key, bits) for key in keys] == [hashed & mask for hashed in expected(keys)]


@given(st.integers(0, 2**64 - 1))
def test_fold_agrees_for_numbers_and_arrays(value: int) -> None:
    assert fold32(np.array([value], np.uint64))[0] == fold32(value) == (value ^ value >> 32) & 0xFFFFFFFF
