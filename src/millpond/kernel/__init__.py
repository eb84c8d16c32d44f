"""Ordered entries, segments, manifests and registers: values and rules that every part is made of, without any I/O."""
