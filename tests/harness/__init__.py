"""Worlds, faults and contracts of Millpond's own tests, held to the taste and the types of what ships."""
