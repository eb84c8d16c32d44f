"""Events: a stream for each queue and job set, split into days that are compressed, then dropped.

    event.py names.py ids.py days.py index.py     the values and the rules, pure
    events.py                                     the front door
    codec.py                                      batches of events as bytes
    protocol.py                                   `StreamStore`: what a backend promises
    embedded/                                     the default backend: rows of the pond's space

    ages.py age_settings.py                       ages of queues and job sets, as values and as rows
    deletion.py                                   the events of one job are deleted

    open day ──(a later day begins, or nobody writes any more)──▶ closed ──▶ compressed ──▶ expired ──▶ gone

Invariants, of every backend; each has a test that fails without it:

1. Ids grow strictly within a stream, and an event has one id for ever: before, during and after compression.
2. A reader that goes on from the last id it saw gets exactly the events after it, in order, each once; whatever is
   compressed meanwhile. Events that expired are skipped, and the page says so (`gap`).
3. A batch is stored wholly or not at all, with its source position: what is delivered again changes nothing, also in
   other batches than before.
4. The day of an event is the later of the day of its time and the last day of its stream, decided in the append.
   Only the newest day is open. A closed day gets no event any more: late events go to the open day.
5. A change of a stored day is fenced: it happens only when the day is what its maker saw.
6. Each day of a stream is listed until its events are gone, also after a crash; and due days are found in a registry,
   never by a scan of all streams.
7. No two pairs of queue and job set share a row, whatever characters are in them.
8. Of what is deleted a page has all of a day or nothing: a stream goes in one write, a job in one for each segment. A
   deletion that began is ended by maintenance. It takes back no id, and no position of a source.
"""
