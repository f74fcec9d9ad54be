"""A site's process that kills itself at a chosen request to the server, for one started with this folder on PYTHONPATH.

The file COFAL_TEST_DEATH holds `REQUEST N`: with the N-th answer to such a request, counted from when the file was
written, the process is gone, as by kill -9; so is the file. Of `pull-messages` only those count that brought a message.
"""

import os
import signal
from pathlib import Path

from cofal.deploy.fleet_api import FleetConnection

_order = Path(os.environ["COFAL_TEST_DEATH"])
_call = FleetConnection._call
_seen = 0


def _die_when_told(self, path, request, kind, timeout=30.0):
    global _seen
    response = _call(self, path, request, kind, timeout)
    if not _order.exists():
        _seen = 0
    else:
        when, number = _order.read_text().split()
        _seen += path == when and (path != "pull-messages" or bool(response.messages_list))
        if _seen == int(number):
            _order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return response


FleetConnection._call = _die_when_told
