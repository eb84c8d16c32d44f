"""Objects: entries as values, as columns and as staged rows; and where their bytes lie."""
