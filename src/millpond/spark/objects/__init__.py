"""Repositories of objects in Spark: the entries of a ref as rows, compaction and garbage collection as jobs.

The driver opens the pond. Executors need no pond: they read ranges, write ranges and list objects in the repository's
namespace, which they must reach: a bucket, or a folder under one path.
"""

from millpond.spark.objects.compaction import compact_branch
from millpond.spark.objects.garbage import collect_garbage
from millpond.spark.objects.source import ObjectsSource

__all__ = ("ObjectsSource", "collect_garbage", "compact_branch")
