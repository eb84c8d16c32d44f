"""A map as an object of a commit: `maps/<name>`, whose bytes are the manifest, and whose metadata the definition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from millpond.errors import Corrupt, Invalid
from millpond.json_forms import FormError, parse_object, stable_json
from millpond.kernel.keys import starting
from millpond.kernel.space import ReadTransaction
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.snapshots.manifest import SnapshotManifest, manifest_name
from millpond.ranges import scan
from millpond.refs.stand_ins import stand_in_for
from millpond.versions.objects.entries import Entry, entries_of
from millpond.versions.reference import Reference
from millpond.versions.repository_context import RepositoryContext

__all__ = ("MAPS", "MapEntry", "counting", "counting_object", "map_path", "maps_of", "states_in")

MAPS = "maps/"
FORMAT = 1
CONTENT_TYPE = "application/vnd.millpond.map+json"


def map_path(name: str) -> str:
    """The path of a map's object."""
    return f"{MAPS}{name}"


@dataclass(frozen=True, slots=True)
class MapEntry:
    """The state of a map in a commit, or on a branch: `manifest` is the id of its manifest, and `version` its number.

    A map that was never changed has no manifest. `recorded` is the one that the object names, where another stands in
    for it.
    """

    definition: MapDefinition
    manifest: str = ""
    version: int = 0
    size: int = 0
    recorded: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def folder(self) -> str:
        """The folder of the map's files, which all its states share."""
        return folder_name(self.definition)

    def same_state(self, other: MapEntry | None) -> bool:
        """True when both tell of the same rows, perhaps in other layers, and of the same settings."""
        if other is None or self.definition != other.definition:
            return False
        return self.manifest == other.manifest or self.version == other.version

    def with_manifest(self, manifest: SnapshotManifest) -> MapEntry:
        """The same map with another state."""
        size = len(manifest.to_bytes())
        return replace(self, manifest=manifest.id, version=manifest.shard_version, size=size, recorded="")

    def to_entry(self, pond: str, seconds: int) -> Entry:
        """The object, for a pond at an address."""
        address = f"{pond}/snapshots/{self.folder}/{manifest_name(self.manifest)}"
        about = {
            "format": str(FORMAT), "definition": stable_json(self.definition.to_dict(), compact=True).decode(),
            "version": str(self.version),
        }  # fmt: skip
        return Entry(map_path(self.name), address, self.size, seconds, self.manifest, CONTENT_TYPE, about)

    @classmethod
    def of(cls, entry: Entry) -> MapEntry:
        """The state that an object tells of.

        Raises: `Invalid` for a format that is newer than this reader; `Corrupt`.
        """
        about = entry.metadata
        if about.get("format") != str(FORMAT):
            raise Invalid(
                "the map has a form here that this version does not know", kind="map_entry_format", path=entry.path,
                found=about.get("format"), known=FORMAT, hint="read it with the version that wrote it, or a newer one",
            )  # fmt: skip
        try:
            definition = MapDefinition.from_dict(parse_object(about["definition"]))
            return cls(definition, entry.checksum, int(about["version"]), entry.size)
        except (FormError, KeyError, ValueError) as error:
            raise Corrupt("a map's object cannot be read", kind="map_entry_damaged", path=entry.path) from error


def maps_of(context: RepositoryContext, expression: str) -> dict[str, MapEntry]:
    """All maps at a ref, by name; of a branch with what is staged, unless it ends with `@`.

    Raises: `NotFound`, `Invalid` for the ref; as `MapEntry.of`.
    """
    return _counting(
        context, (entry for batch in Reference(context, expression).entries(MAPS) for entry in entries_of(batch))
    )


def states_in(context: RepositoryContext, index: str) -> dict[str, MapEntry]:
    """All maps of an index, by name.

    Raises: as `MapEntry.of`.
    """
    batches = scan(context.ranges, context.index(index), *starting(MAPS))
    return _counting(context, (entry for batch in batches for entry in entries_of(batch)))


def counting(context: RepositoryContext, entry: Entry) -> MapEntry:
    """The state that an object tells of, with the manifest that counts.

    Raises: as `MapEntry.of`.
    """
    with context.space.read() as tx:
        return _counted(tx, entry)


def counting_object(context: RepositoryContext, entry: Entry) -> Entry:
    """The object of a map, whose bytes are the manifest that counts.

    Raises: as `MapEntry.of`.
    """
    state = counting(context, entry)
    if not state.recorded:
        return entry
    address = entry.address.replace(state.recorded, state.manifest)
    return replace(entry, address=address, checksum=state.manifest, size=state.size)


def _counting(context: RepositoryContext, entries: Iterable[Entry]) -> dict[str, MapEntry]:
    listed = list(entries)
    with context.space.read() as tx:
        return {state.name: state for state in (_counted(tx, entry) for entry in listed)}


def _counted(tx: ReadTransaction, entry: Entry) -> MapEntry:
    state = MapEntry.of(entry)
    new = stand_in_for(tx, state.folder, state.manifest)
    return state if new is None else replace(state, manifest=new.manifest, size=new.size, recorded=state.manifest)
