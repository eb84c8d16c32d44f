"""The story of a pond with maps in layers beside maps in shards, which loads change together."""

from __future__ import annotations

from functools import partial

from tests.crash import story

__all__ = ("ACTS", "clock_of", "tell", "warm")

LAYERED = ("planes", "nets", "weather")
MAPS = {name: {**settings, "store": "layers" if name in LAYERED else "shard"} for name, settings in story.MAPS.items()}
ACTS = tuple(story.acts_of(MAPS))
clock_of, warm = story.clock_of, story.warm
tell = partial(story.tell, acts=ACTS)
