"""Refs of maps: branches, commits, tags and times of layered maps, in the repository `pond` of each pond.

    map_entries.py      a map as an object of a commit: its definition and its manifest
    named.py            which manifests commits and branches name: their files stay
    main.py             `main`, whose state of a map is the head of the map
    changes.py          new states of maps on a branch: staged, or committed
    merges.py           differences, merges, reverts by key
    layers.py map.py pond.py    a map and a pond as they are at a ref

`docs/format/branches.md` states the invariants.
"""
