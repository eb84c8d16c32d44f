"""Stories of runs: events in the streams of the pond (queue = tenant, job set = run).

    writes of a command ─▶ facts ─▶ STORY, in the same write ─▶ teller ─▶ streams ─▶ STORY deleted

| module | holds |
|---|---|
| `facts` | what the rows that a command writes tell: a pure function |
| `rows` | what waits to be told |

The teller is a part of the server: it knows streams and workflows, which do not know each other.

Invariant: an event is in its stream once. A row of STORY is written with the rows of its command, and deleted after its
events are durable; told again after a crash, its position in the source is known, and it is left out.
"""

from millpond.extras import need

need("littlehorse")

from millpond.workflows.stories.facts import Fact, facts_of
from millpond.workflows.stories.rows import (
    CommandStory,
    StoryPosition,
    delete_stories,
    drop_stories,
    note_facts,
    stories_after,
    story_sizes,
)

__all__ = (
    "CommandStory", "Fact", "StoryPosition", "delete_stories", "drop_stories", "facts_of", "note_facts",
    "stories_after", "story_sizes",
)  # fmt: skip
