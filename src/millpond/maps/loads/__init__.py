"""The life of a load: received, queued, merged, retained."""
