"""Measuring selection against a floor and against peers; every measurement in a process of its own."""
