"""Nodes: ponds that are served, those who keep them alike, and those who ask them."""
