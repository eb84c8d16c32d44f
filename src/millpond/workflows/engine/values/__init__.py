"""Values of variables: types, conversions, JSON paths, operators and masks."""
