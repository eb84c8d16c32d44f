"""A pond behind URLs, used like one in a folder."""
