"""Jobs whose life is a stream of events: queues, submissions, and what their streams say of jobs that have not ended.

    queues.py         queues that jobs may be submitted to
    submissions.py    jobs submitted once, whatever is sent again
    active.py         the jobs of a job set that have not ended, as a function of its stream

Millpond runs no jobs. A job is what its events say: `submitted` and `queued` are appended here, `running`, `succeeded`
and the others by whoever runs it, each with the job's id in the header `job_id`.

Invariants:
1. A job that was answered has its events in the stream, before the answer.
2. Jobs with the same queue and client id are one job, for `CLIENT_DAYS`; also when a node dies between two steps, and
   whichever of the nodes that share the streams they reach.
3. What is known of active jobs is a function of the stream; nothing of it is stored, so it is never out of step.
4. Rows are bounded: queues by `QUEUES_MAX`, ids of clients by their days.
"""
