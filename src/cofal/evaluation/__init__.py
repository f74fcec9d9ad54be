"""Measures over results: pure functions on numbers and arrays."""
