"""Deployment: the processes of a federation on several hosts, their folders, keys and the one public port.

What the processes say to each other is `federation/`; this package starts them and carries the messages.
"""

import os

# Bytes of the parts that Flower cuts arrays into; it pays for each part several times, and by itself takes 5 MB. It
# looks when it is imported, so this comes first; the processes of a server inherit it.
PART = 24 << 20
os.environ.setdefault("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", str(PART))
