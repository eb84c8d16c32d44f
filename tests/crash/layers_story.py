"""The story of a pond with maps in layers beside maps in shards, which loads change together; some change, or go over.

At its end tasks leave rows of the maps in layers in files, as those of Spark do, and one load brings their layers,
which tasks fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.errors import AlreadyExists, NotFound
from millpond.maps.layered.row_files import RowFileWriter
from millpond.maps.layered.share_ranges import ShareRanges, ShareWriter, stretches
from millpond.maps.loads.layered_load import layers_of_files
from millpond.maps.loads.load import commit_load
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.map_rows import compact_rows
from millpond.maps.snapshots.fold_writer import FoldWriter
from millpond.ranges import load_index
from millpond.stores.files import remove_tree
from tests.crash import story
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from millpond import Pond
    from millpond.maps.snapshots.stretches import StretchWriter
    from tests.crash.story import World

__all__ = ("ACTS", "clock_of", "tell", "warm")

LAYERED = ("planes", "nets", "weather")
TASKED = ("planes", "nets", "seen")
TIMED = ("weather", "nets", "seen")
MAPS = {name: {**settings, "store": "layers" if name in LAYERED else "shard"} for name, settings in story.MAPS.items()}


def widen(pond: Pond) -> None:
    pond.alter_map("nets", widen={"value": "double"})


def expect_widened(world: World) -> None:
    nets = world["nets"]
    nets.rows.update({address: float(str(value)) for address, value in nets.rows.items()})


def keep_times(pond: Pond, name: str) -> None:
    pond.alter_map(name, retain="1000y", retain_by="update_time")


def copy(pond: Pond) -> None:
    with suppress(AlreadyExists):
        pond.catalogue.copy("nets", "lanes")


def rename(pond: Pond) -> None:
    with suppress(NotFound):
        pond.catalogue.rename("lanes", "ways")


def load_by_tasks(pond: Pond) -> None:
    """Two tasks read the rows, as many as there are stretches write them, and one load has the layers of all maps."""
    folder, files = writer_folder(pond.folder, pond.clock), []
    for name in TASKED:
        rows, definition = story.rows_of(name, 4), pond.map(name).definition
        for task, piece in enumerate((rows[::2], rows[1::2])):
            writer = RowFileWriter(definition, folder / str(task) / name)
            writer.write(canonical_of(definition, piece))
            files += writer.finish()
    with ExitStack() as held:
        commit_load(pond.loading, layers_of_files(pond.loading.layers_of, files, held, by_stretches, ""))
    remove_tree(folder)


def by_stretches(writer: ShareWriter) -> list[ShareRanges]:
    return [writer.write(stretch) for stretch in stretches(writer.files, rows_max=4)]


def fold_by_tasks(pond: Pond) -> None:
    for name in TASKED:
        compact_rows(pond.map(name).rows, pond.loading, name, by_keys)


def by_keys(writer: StretchWriter[Any, Any]) -> list[Any]:
    assert isinstance(writer, FoldWriter)
    indexes = [load_index(writer.objects, layer.index) for layer in writer.inputs]
    cuts = sorted({key for index in indexes for entry in index.entries for key in (entry.first, entry.last)})
    return [writer.write(stretch) for stretch in zip([None, *cuts], [*cuts, None], strict=True)]


def expect_by_tasks(world: World) -> None:
    for name in TASKED:
        world[name].put(story.rows_of(name, 4))


def _acts() -> Iterator[story.Act]:
    for act in story.acts_of(MAPS):
        yield act
        if act.name == "load 3":
            for name in TIMED:
                yield story.Act(f"keep times of {name}", partial(keep_times, name=name), story.nothing)
            yield story.Act("to a shard", lambda pond: pond.alter_map("weather", store="shard"), story.nothing)
            yield story.Act("to layers", lambda pond: pond.alter_map("seen", store="layers"), story.nothing)
    yield story.Act("load by tasks", load_by_tasks, expect_by_tasks)
    yield story.Act("fold by tasks", fold_by_tasks, story.nothing)
    yield story.Act("widen nets", widen, expect_widened)
    yield story.Act("copy nets", copy, lambda world: world.update(lanes=deepcopy(world["nets"])))
    yield story.Act("rename lanes", rename, lambda world: world.update(ways=world.pop("lanes")))


ACTS = tuple(_acts())
clock_of, warm = story.clock_of, story.warm
tell = partial(story.tell, acts=ACTS)
