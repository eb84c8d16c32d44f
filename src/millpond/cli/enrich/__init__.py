"""`millpond enrich`: the command, in this process or by Spark, and files of events."""
