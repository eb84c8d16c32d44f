"""Uploads: parts on their way into a node."""
