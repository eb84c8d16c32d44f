"""The messages of the API: `armada.proto`, and the modules that `tools/protocols.py` makes of it."""
