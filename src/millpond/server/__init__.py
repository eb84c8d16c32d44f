"""A node over HTTP: routes, their rights, their errors on the wire, and the process that serves them."""

from millpond.extras import need

need("starlette")
