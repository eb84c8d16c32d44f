"""Repositories of objects on a node, used like those of a pond in a folder.

api.py          requests below `/api/v1`, with the credentials and the errors of repositories
models.py       values as the node writes them
repositories.py repository.py reference.py branch.py imports.py     as in `versions/`
"""
