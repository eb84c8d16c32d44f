"""Parts are validated whole: what a sound writer makes passes, what lies is refused, and nothing ends the process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Corrupt
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.parts import data_file
from millpond.maps.parts.part import PartFile, PartWriter, verify_part
from millpond.maps.parts.tail import DATA, MANIFEST, TOUCHED
from millpond.maps.parts.touched import read_touched
from millpond.maps.parts.validate import validate_part
from millpond.pond import open_pond
from millpond.stores.lmdb.page_format import PAGE
from tests.harness import strategies
from tests.harness.models import Row
from tests.harness.part_pieces import pieces_of, put_pieces
from tests.harness.rows import canonical_of
from tests.harness.scratch import scratch_folder
from tests.rings.sampling import examples
from tests.unit.mutations import Mutation, give_its_id, mutate, mutations, sealed

pytestmark = pytest.mark.sample(2, of="file")

STATE = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16, value=parse_value_type("string"))


def validate(part: PartFile, definition: MapDefinition) -> None:
    folder = part.file
    validate_part(folder, verify_part(folder), definition)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@settings(max_examples=examples(10, 40))
@given(data=st.data())
def test_what_a_writer_seals_is_sound(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    rows = data.draw(strategies.rows(definition, data.draw(strategies.pools(definition)), most=40))
    with scratch_folder() as folder:
        validate(sealed(definition, folder, rows), definition)


def many_rows(definition: MapDefinition, count: int) -> list[Row]:
    """Rows with keys of many lengths, several a key."""
    value = (lambda n: "v" * (n * 37 % 5000)) if definition.kind.valued else (lambda n: None)
    rows: list[Row] = []
    for n in range(count):
        key = f"{n * 7919 % count:06d}" + "\x01long" * (n % 40 * (n % 7 == 0))
        address: tuple[Any, ...] = {
            Kind.STATE: (key,), Kind.TEMPORAL_STATE: (key[:5], n), Kind.SESSION: (key[:5], n, n + n % 9),
            Kind.RANGED_STATE: (n - 500, n + 3), Kind.TEMPORAL_RANGED_STATE: (n // 4 - 500, n // 4, n),
        }[definition.kind]  # fmt: skip
        rows.append((address, value(n)))
    return rows


@pytest.mark.sample(10)
@pytest.mark.parametrize("bits", [64, 3])
@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_large_parts_of_every_map_are_sound(tmp_path: Path, kind: Kind, scheme: Scheme, bits: int) -> None:
    value = parse_value_type("string") if kind.valued else None
    definition = replace(STATE, kind=kind, scheme=scheme, value=value, hash_bits=bits)
    part = sealed(definition, tmp_path, many_rows(definition, 3_000))
    assert part.manifest.data_bytes > 20 * PAGE
    validate(part, definition)


@pytest.mark.usefixtures("processor")
def test_pieces_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.maps.parts.validate.PIECE_BYTES", 700)
    for kind in PLAIN_KINDS:
        for scheme, bits in ((Scheme.AUTO, 64), (Scheme.HASH, 64), (Scheme.DIRECT, 3)):
            value = parse_value_type("string") if kind.valued else None
            definition = replace(STATE, kind=kind, scheme=scheme, value=value, hash_bits=bits)
            validate(sealed(definition, tmp_path / f"{kind}-{scheme}", many_rows(definition, 400)), definition)


def test_what_lmdb_itself_wrote_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = replace(STATE, value=parse_value_type("string"))
    rows = many_rows(definition, 2_000)
    ours = sealed(definition, tmp_path / "ours", rows)

    def by_lmdb(file: Path, tables: Any) -> tuple[int, str]:
        data_file._write_rows(file, tables)
        return file.stat().st_size, data_file.checksum_file(file)

    monkeypatch.setattr("millpond.maps.parts.part.write_data", by_lmdb)
    theirs = sealed(definition, tmp_path / "theirs", rows)
    assert theirs.manifest.id == ours.manifest.id
    assert theirs.manifest.data_checksum != ours.manifest.data_checksum
    validate(theirs, definition)


# -- what lies ----------------------------------------------------------------------------------------


class Child:
    """The process that takes parts, started again when it died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def take(self, folder: Path) -> str:
        if self.process is None:
            command = [sys.executable, "-m", "tests.unit.mutated_child"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        process = self.process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        print(folder, file=process.stdin, flush=True)
        answer = process.stdout.readline().strip()
        if not answer:
            self.process = None
            _, message = process.communicate()
            raise AssertionError(f"it ended with {process.returncode}: {message}")
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    taking = Child()
    yield taking
    taking.close()


KINDS = {"merged", "part_damaged", "part_manifest", "part_rows", "part_other", "part_format", "map_incarnation",
         "map_not_found", "part_file_missing"}  # fmt: skip


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@settings(max_examples=examples(10, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_lie_ends_the_process(child: Child, kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    rows = data.draw(strategies.rows(definition, data.draw(strategies.pools(definition)), most=40))
    with scratch_folder() as folder:
        part = sealed(definition, folder / "made", rows)
        part.file.rename(folder / "part")
        part = PartFile(folder / "part", part.manifest)
        mutate(part, data.draw(mutations()))
        changed = give_its_id(part, definition)
        if changed is None:
            return
        (folder / "definition.json").write_text(json.dumps(definition.to_dict()))
        batch = canonical_of(definition, rows[:1])
        with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        answer = child.take(folder)
        event(answer)
        assert answer in KINDS


def pages_of(part: PartFile) -> bytes:
    return pieces_of(part.file)[DATA]


@pytest.mark.usefixtures("processor")
def test_every_changed_byte_of_a_page_header_is_seen_or_harmless(tmp_path: Path) -> None:
    """Of a small file every byte is tried: what still passes is read by LMDB to the same rows."""
    definition = replace(STATE, scheme=Scheme.HASH, hash_bits=2)
    part = sealed(definition, tmp_path / "sound", many_rows(definition, 60))
    pieces = pieces_of(part.file)
    sound = pieces[DATA]
    with lmdb.open(str(part.file), subdir=False, readonly=True, lock=False, max_dbs=8) as env:
        expected = rows_of(env, part)
    passed: Counter[int] = Counter()
    for at in range(len(sound)):
        if at % PAGE > 64 and at % 29:
            continue
        damaged = bytearray(sound)
        damaged[at] ^= 0xFF
        put_pieces(part.file, pieces | {DATA: bytes(damaged)})
        try:
            validate_part(part.file, part.manifest, definition)
        except Corrupt:
            continue
        passed[at // PAGE] += 1
        with lmdb.open(str(part.file), subdir=False, readonly=True, lock=False, max_dbs=8) as env:
            assert rows_of(env, part) == expected, at
    assert passed.total() > 0, "the space between nodes, and the older meta page, mean nothing"


def rows_of(env: lmdb.Environment, part: PartFile) -> list[Any]:
    found: list[Any] = []
    for name in part.manifest.tables:
        table = env.open_db(name.encode(), create=False)
        with env.begin(db=table) as tx:
            found += list(tx.cursor())
    return found


LIES: dict[str, tuple[Mutation, str]] = {
    "fewer rows": (Mutation(piece=MANIFEST, field="rows", value=2), "part_manifest"),
    "rows as text": (Mutation(piece=MANIFEST, field="rows", value="3"), "part_manifest"),
    "a table that is not there": (Mutation(piece=MANIFEST, field="tables", value={"x": 3}), "part_manifest"),
    "a session's length": (Mutation(piece=MANIFEST, field="longest_session", value=2**70), "part_manifest"),
    "another id": (Mutation(piece=MANIFEST, field="id", value="f" * 32), "part_other"),
    "another salt": (Mutation(piece=MANIFEST, field="salt", value="x"), "part_other"),
    "half a file": (Mutation(pages=2), "part_damaged"),
    "a page more": (Mutation(page=1, at=136, data=b"\xff"), "part_damaged"),
    "an unknown field": (Mutation(piece=MANIFEST, field="more", value=1), "part_manifest"),
    "no keys": (Mutation(piece=TOUCHED, pages=0), "part_damaged"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_when_it_is_committed(tmp_path: Path, lie: str) -> None:
    change, kind = LIES[lie]
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        target = pond.create_map("m", kind="state", value="string")
        part = sealed(target.definition, tmp_path / "part", [((f"k{n}",), "v") for n in range(3)])
        mutate(part, [change])
        with pytest.raises(Corrupt) as caught:
            pond.commit_load([part])
        assert caught.value.kind == kind
        assert caught.value.hint or caught.value.values
        assert pond.parts.list() == []
        target.load({"key": ["k0"], "value": ["sound"]})
        assert target.get("k0") == "sound"


def keys_file(keys: pa.Array, *, codec: str | None = None, batches: int = 1, name: str = "key") -> bytes:
    sink, schema = io.BytesIO(), pa.schema([pa.field(name, keys.type)])
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch([keys], schema=schema))
    return sink.getvalue()


def bomb(codec: str) -> bytes:
    """A hundred megabytes of keys, in a few."""
    return keys_file(pa.array([b"k" * 1000]).take(pa.array([0] * 100_000)), codec=codec)


def another_place(file: bytes) -> bytes:
    """The file of these keys, whose footer names a batch behind it that is compressed, and large."""
    return file + bytes(-len(file) % 8) + bomb("zstd")


KEYS = pa.array([b"k0", b"k1", b"k2"], pa.binary())
HOSTILE_KEYS: dict[str, Callable[[], bytes]] = {
    "compressed": lambda: keys_file(pa.array([b"k" * 100] * 3), codec="zstd"),
    "much in little": lambda: bomb("zstd"),
    "much in little, packed otherwise": lambda: bomb("lz4"),
    "more rows than a part has": lambda: keys_file(pa.Array.from_buffers(pa.null(), 1 << 30, [None])),
    "two batches": lambda: keys_file(KEYS, batches=2),
    "no batch": lambda: keys_file(KEYS, batches=0),
    "another column": lambda: keys_file(KEYS, name="keys"),
    "a dictionary": lambda: keys_file(KEYS.dictionary_encode()),
    "a key that is null": lambda: keys_file(pa.array([b"k0", b"k1", None], pa.binary())),
    "a stream": lambda: keys_file(KEYS)[8:],
    "half of it": lambda: keys_file(KEYS)[:200],
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("lie", HOSTILE_KEYS)
def test_keys_are_measured_before_they_are_read(tmp_path: Path, lie: str) -> None:
    part = sealed(STATE, tmp_path / "part", [((f"k{n}",), "v") for n in range(3)])
    file = part.file
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # its peak is not that of what is measured
    try:
        put_pieces(file, pieces_of(file) | {TOUCHED: HOSTILE_KEYS[lie]()})
    finally:
        pa.set_memory_pool(pool)
    assert file.stat().st_size < 2 << 20
    mutate(part, [])
    peak = pool.max_memory()
    with pytest.raises(Corrupt) as caught:
        validate(part, STATE)
    assert caught.value.kind == "part_damaged" and "piece=touched" in str(caught.value)
    assert pool.max_memory() <= max(peak, pool.bytes_allocated() + (16 << 20))


@pytest.mark.usefixtures("processor")
def test_the_batch_that_is_measured_is_the_one_that_is_read(tmp_path: Path) -> None:
    """A footer that names another batch changes nothing."""
    put_pieces(tmp_path / "part", {TOUCHED: another_place(keys_file(KEYS))})
    assert read_touched(tmp_path / "part").equals(KEYS)


def test_a_writer_cannot_use_up_the_id_of_another_maps_part(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        mine, theirs = (pond.create_map(name, kind="state", value="string") for name in ("mine", "theirs"))
        [wanted] = [sealed(theirs.definition, tmp_path / "theirs", [(("k",), "v")])]
        forged = sealed(mine.definition, tmp_path / "mine", [(("k",), "v")])
        mutate(forged, [Mutation(piece=MANIFEST, field="id", value=wanted.manifest.id)])
        forged = PartFile(forged.file, replace(forged.manifest, id=wanted.manifest.id))
        with pytest.raises(Corrupt, match="do not make"):
            pond.commit_load([forged])
        assert pond.commit_load([wanted]).parts == 1
        assert theirs.get("k") == "v"


def test_data_that_is_loaded_again_carries_its_salt(tmp_path: Path) -> None:
    writer = PartWriter(STATE, tmp_path, salt="once more")
    writer.write(canonical_of(STATE, [(("k",), "v")]))
    [part] = writer.finish()
    validate(part, STATE)
    assert part.manifest.salt == "once more"
