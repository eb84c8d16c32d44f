"""Alerts: rules on aggregates, which loads meet; what is to be told is part of a load."""
