"""What tests of Millpond and of its drivers are made of: contracts, models, strategies, audits, faults."""
