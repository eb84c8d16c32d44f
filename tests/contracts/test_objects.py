"""Every store of objects keeps the one contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.stores.objects import FolderObjects, MemoryObjects, ObjectStore, open_objects
from millpond.stores.objects.bucket import BucketObjects
from millpond.testing.contracts.objects import ObjectsContract
from tests.s3_server import S3Server


class TestMemoryObjects(ObjectsContract):
    @pytest.fixture
    def objects(self) -> ObjectStore:
        return MemoryObjects()

    def look_behind(self, objects: ObjectStore, name: str) -> bytes | None:
        assert isinstance(objects, MemoryObjects)
        return objects._held[name].to_pybytes()

    def put_behind(self, objects: ObjectStore, name: str, data: bytes) -> None:
        objects.put(name, data)


@pytest.mark.usefixtures("processor")
class TestFolderObjects(ObjectsContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return FolderObjects(tmp_path / "objects")

    def look_behind(self, objects: ObjectStore, name: str) -> bytes | None:
        return (Path(objects.where) / name).read_bytes()

    def put_behind(self, objects: ObjectStore, name: str, data: bytes) -> None:
        file = Path(objects.where) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


class TestBucketObjects(ObjectsContract):
    swaps_race = False
    examples_max = 5

    @pytest.fixture
    def objects(self, s3_server: S3Server, bucket: ObjectStore) -> ObjectStore:
        self.folder = s3_server.folder
        return bucket

    def _file(self, objects: ObjectStore, name: str) -> Path:
        assert isinstance(objects, BucketObjects)
        return self.folder / objects.where.removeprefix("s3://") / name

    def look_behind(self, objects: ObjectStore, name: str) -> bytes | None:
        return self._file(objects, name).read_bytes()

    def put_behind(self, objects: ObjectStore, name: str, data: bytes) -> None:
        file = self._file(objects, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def test_the_bucket_of_a_test_is_its_own(bucket: ObjectStore) -> None:
    assert list(bucket.list()) == []
    assert isinstance(open_objects("memory://"), MemoryObjects)
