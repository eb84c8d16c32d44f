"""Millpond's own work told as events: what a pond, its clients and the steps of pipelines do, in streams to watch.

    reporter.py       the jobs of a pond (loads, commits and others), in the queue `millpond`; a thread appends them
    open_jobs.py      files that tell of jobs whose process was killed
    remote.py         the jobs of a client of nodes, appended to the node's streams
    client_jobs.py    a node ends the jobs of clients that are gone
    alerts.py         alerts of maps
    steps.py          attempts at steps of pipelines, in the streams of their runs

What a run of a workflow does is noted in the same write as its rows, in `workflows/stories`, and `server` appends it.
"""
