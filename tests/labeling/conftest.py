"""Fixtures of the tests of the annotators' page."""

from __future__ import annotations

import threading

import pytest

from cofal.labeling.web.serve import Page


@pytest.fixture
def serve():
    """Start a site's page in a thread of this process; ended with the test."""
    running: list[tuple[Page, threading.Thread]] = []

    def start(folder, **options) -> Page:
        page = Page(folder, **options)
        thread = threading.Thread(target=page.serve, daemon=True)
        thread.start()
        running.append((page, thread))
        return page

    yield start
    for page, thread in running:
        page.stop()
        thread.join(10)
