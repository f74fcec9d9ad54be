"""Questions out to other labelling tools and their answers back: one file a format, `files.py` for what they share."""
