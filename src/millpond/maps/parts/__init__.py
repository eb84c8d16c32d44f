"""Parts: the sealed, sorted rows of one map from one task, as a folder or as one file."""
