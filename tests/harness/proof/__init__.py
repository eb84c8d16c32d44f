"""The proof: the demo's pipeline, again and again, while a seeded killer ends its processes at random moments.

    python -m tests.harness.proof --kills 200 --seed 7

The report of the last whole run is kept in `report.txt`.

| module | holds |
|---|---|
| `model` | what the maps and the flights must be, in plain Python from the files |
| `killer` | the server, the worker and its driver of Spark, and whom to end when |
| `checks` | a run that ended, held against the model |
| `campaign` | runs and kills until both are over |
"""
