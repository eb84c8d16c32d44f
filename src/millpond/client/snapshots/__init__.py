"""The client's cache of snapshots: one copy a machine, of which only missing ranges are fetched."""
