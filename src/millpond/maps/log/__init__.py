"""The log of a pond's maps: its entries, how they are applied, and the queue of parts to be merged."""
