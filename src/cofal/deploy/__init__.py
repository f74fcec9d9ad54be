"""Deployment: the processes of a federation on several hosts, their folders, keys and the one public port.

What the processes say to each other is `federation/`; this package starts them and carries the messages.
"""
