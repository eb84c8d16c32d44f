"""Jobs that are reported, as spans: loads, merges, maintenance, acts on branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from millpond.kernel.job_reports import Fact, Story
from millpond.tracing.doors import is_traced, span

__all__ = ("span_stories",)


def span_stories() -> list[Story]:
    """The story of jobs as spans, where this process makes spans."""
    return [_span_of] if is_traced() else []


@contextmanager
def _span_of(job_set: str, _job_id: str, facts: Mapping[str, Fact]) -> Iterator[Callable[..., object]]:
    """A span with the name of what the job does."""
    act, _, about = job_set.partition("/")
    with span(str(facts.get("act", act)), job=act, about=about, **facts) as own:
        yield own.note
