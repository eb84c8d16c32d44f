"""The demonstration: a year of real flights, enriched by Spark from maps that Spark built.

| module | holds |
|---|---|
| `sources` | the real data, found in the packages that carry it |
| `plan` | which maps there are, and how each one's rows come out of the data |
| `corrections` | weather that is corrected on a branch, and merged |
"""
