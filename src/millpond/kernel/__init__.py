"""Ordered entries, segments, manifests and heads: values and rules that every part is made of, without any I/O."""
