"""Maps: what they are, how their rows get in, lie on disk, are frozen, looked up, scanned and maintained."""
