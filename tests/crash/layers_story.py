"""The story of a pond with maps in layers beside maps in shards, which loads change together; two go over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.crash import story

__all__ = ("ACTS", "clock_of", "tell", "warm")

LAYERED = ("planes", "nets", "weather")
MAPS = {name: {**settings, "store": "layers" if name in LAYERED else "shard"} for name, settings in story.MAPS.items()}


def _acts() -> Iterator[story.Act]:
    for act in story.acts_of(MAPS):
        yield act
        if act.name == "load 3":
            yield story.Act("to a shard", lambda pond: pond.alter_map("weather", store="shard"), story.nothing)
            yield story.Act("to layers", lambda pond: pond.alter_map("seen", store="layers"), story.nothing)


ACTS = tuple(_acts())
clock_of, warm = story.clock_of, story.warm
tell = partial(story.tell, acts=ACTS)
