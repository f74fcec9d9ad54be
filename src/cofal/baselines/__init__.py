"""The systems that are compared: each takes a simulated federation and nested budgets, and gives a curve."""
