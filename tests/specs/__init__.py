"""Specifications of the protocols in TLA+, and a test that lets TLC go through all of their states."""
