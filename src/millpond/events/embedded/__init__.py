"""Streams in the pond's space.

    events/head (queue, job set)             one row a stream: its newest id and day, and its open day
    events/segment (queue, job set, day)     a kernel series: the segments that are open no more
    events/batch (queue, job set, last id)   all events, in the order of their ids, compressed or not
    events/source (queue, job set, source)   the position up to which a source's events are stored
    events/due (work, day, queue, job set)   the registry: at most one row for a stream and a kind of work

A reader needs no segments: it reads on in the order of ids, and meets rows of many events, or of one. To compress is
to put one row in the place of its neighbours.

Over the space of a bucket, `large_rows.py` keeps the bodies of large batches as objects beside it, and `fold.py` lets
small rows of an open day become one.

Each act is a function of a transaction, so that other parts append events in the same write as their own changes.
"""
