"""Contract suites: what every implementation of a protocol promises."""
