"""One module a format, each with `find(settings) -> Finding`."""
