"""A clock that is COFAL_TEST_CLOCK seconds off, for a process started with this folder on its PYTHONPATH."""

import datetime
import os
import time

_OFF = float(os.environ.get("COFAL_TEST_CLOCK", "0"))
_right = time.time
time.time = lambda: _right() + _OFF


class _Skewed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=_OFF)


datetime.datetime = _Skewed
