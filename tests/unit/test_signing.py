"""Signatures: one object, one method, until they expire; links at their own path; keys that rotate."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Denied, Invalid
from millpond.kernel.keys import EVERYTHING
from millpond.server.run import _without_signature
from millpond.stores.memory import MemorySpace
from millpond.versions.objects.signing import KEY_MS, LINK_MS, VALID_MS_MAX, SignedAccess, Signer
from millpond.versions.objects.uploads import data_name, stem_of, time_of

NOW = 1_600_000_000_000
ACCESS = SignedAccess("GET", "uid", "data/018518/x", NOW // 1000 + 60, "text/plain", "abc", NOW // 1000)


def new_signer(clock: ManualClock | None = None) -> Signer:
    return Signer(MemorySpace(), clock or ManualClock(NOW))


def parameters(signer: Signer, access: SignedAccess) -> dict[str, str]:
    return dict(parse_qsl(signer.query(access), keep_blank_values=True))


def refused(signer: Signer, repository: str, given: dict[str, str]) -> str:
    with pytest.raises(Denied) as error:
        signer.access(repository, given)
    return error.value.kind


def test_a_url_grants_what_was_signed_until_it_expires() -> None:
    clock = ManualClock(NOW)
    signer = new_signer(clock)
    given = parameters(signer, ACCESS)
    assert signer.access("uid", given) == ACCESS
    clock.now += 59_999
    assert signer.access("uid", given) == ACCESS
    clock.now += 1
    assert refused(signer, "uid", given) == "signature_expired"


@pytest.mark.parametrize("name", ["method", "expires", "type", "etag", "modified", "address", "key", "signature"])
def test_a_url_that_was_changed_or_cut_grants_nothing(name: str) -> None:
    signer = new_signer()
    given = parameters(signer, ACCESS)
    changed = {"expires": str(ACCESS.expires + 1), "method": "PUT", "signature": "é" + given["signature"][1:]}
    assert refused(signer, "uid", given | {name: changed.get(name, given[name] + "0")}) == "signature_invalid"
    assert refused(signer, "uid", {key: value for key, value in given.items() if key != name}) == "signature_invalid"
    assert refused(signer, "other", given) == "signature_invalid"


accesses = st.builds(
    SignedAccess, st.sampled_from(["GET", "PUT"]), st.text(max_size=3), st.text(max_size=6),
    st.integers(NOW // 1000 + 1, NOW // 1000 + 9), st.text(max_size=3), st.text(max_size=3),
    st.integers(-1, 1),
)  # fmt: skip


@given(accesses, accesses)
def test_no_two_accesses_share_a_signature(one: SignedAccess, two: SignedAccess) -> None:
    signer = new_signer()
    one, two = (replace(access, repository="r") for access in (one, two))
    try:
        first, second = parameters(signer, one), parameters(signer, two)
    except Invalid:
        return  # a line end
    if one != two:
        assert refused(signer, "r", first | {"signature": second["signature"]}) == "signature_invalid"
        assert refused(signer, "r", second | {"signature": first["signature"]}) == "signature_invalid"


def test_processes_of_one_space_know_each_others_signatures() -> None:
    space, clock = MemorySpace(), ManualClock(NOW)
    one, two = Signer(space, clock), Signer(space, clock)
    assert two.access("uid", parameters(one, ACCESS)) == ACCESS
    assert parameters(two, ACCESS) == parameters(one, ACCESS)


def test_keys_rotate_and_go() -> None:
    space, clock = MemorySpace(), ManualClock(NOW)
    signer = Signer(space, clock)
    far = replace(ACCESS, expires=(NOW + KEY_MS + VALID_MS_MAX) // 1000 + 9)
    first = parameters(signer, far)
    clock.now += KEY_MS
    second = parameters(signer, far)
    assert first["key"] != second["key"]
    assert signer.access("uid", first) == signer.access("uid", second) == far
    clock.now += VALID_MS_MAX
    assert refused(signer, "uid", first) == "signature_invalid", "no signature outlives its key"
    parameters(signer, far)
    with space.read() as tx:
        assert len(list(tx.keys(EVERYTHING))) == 2
    clock.now = NOW - 5  # a clock that was set back signs by a key of its own
    assert signer.access("uid", parameters(signer, ACCESS)) == ACCESS


def test_a_link_is_valid_at_its_own_path_for_a_day() -> None:
    clock = ManualClock(NOW)
    signer = new_signer(clock)
    name = signer.link_name("uid", "main", "a/b")
    signer.check_link("uid", "main", "a/b", name)
    for repository, branch, path in (("other", "main", "a/b"), ("uid", "dev", "a/b"), ("uid", "main", "a/c")):
        with pytest.raises(Invalid, match="invalid address signature") as error:
            signer.check_link(repository, branch, path, name)
        assert error.value.kind == "link_signature"
    for forged in ("data/x/y", name[:-32], name[:-1], name + "0", "_millpond/repository"):
        with pytest.raises(Invalid) as error:
            signer.check_link("uid", "main", "a/b", forged)
        assert error.value.kind == "link_unsigned"
    clock.now += LINK_MS - 1
    signer.check_link("uid", "main", "a/b", name)
    clock.now += 1
    with pytest.raises(Invalid) as error:
        signer.check_link("uid", "main", "a/b", name)
    assert error.value.kind == "link_expired"


def test_a_line_of_the_log_opens_nothing() -> None:
    url = "/api/v1/signed/r/x.csv?address=data%2Fa&expires=1&key=k&signature=abc%2Fdef&etag=e"
    record = logging.LogRecord("uvicorn.access", 20, "", 0, '%s "%s %s" %d', ("1.2.3.4", "GET", url, 200), None)
    assert _without_signature(record)
    assert record.getMessage() == f'1.2.3.4 "GET {url.replace("abc%2Fdef", "…")}" 200'


def test_names_tell_their_time_in_the_shape_of_lakefs() -> None:
    names = [data_name(ms, f"{number:016x}") for ms in (0, 1, NOW - 1, NOW) for number in (0, 2**64 - 1)]
    assert all(re.fullmatch("data/[0-9a-v]{20}/[0-9a-v]{20}", name) for name in names)
    assert names == sorted(set(names))
    assert [time_of(name) for name in names[::2]] == [0, 1, NOW - 1, NOW]
    for name in (*names, "data/018518/01748a8ec07b-00000000000000ff"):
        signed = f"{name}-{'0' * 32}" if "-" not in name else name + "0" * 32
        for longer in (name, f"{name}0001", signed):
            assert (stem_of(longer), time_of(longer)) == (name, time_of(name))
    assert time_of("data/018518/01748a8ec07b-00000000000000ff") == 0x01748A8EC07B
    for foreign in ("data/g3fd9lq00000000018518/ckd0qjs2t8vs73f8r2o0", "data/x", names[0] + "g", "data/a/b"):
        assert (stem_of(foreign), time_of(foreign)) == (foreign, None)
