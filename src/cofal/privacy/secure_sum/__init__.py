"""Sums over clients of which the server learns only the total: `Session` at a client, `Collector` at the server."""

from cofal.privacy.secure_sum.collector import Collector, SumFailed
from cofal.privacy.secure_sum.identity import public_identity, site_identity
from cofal.privacy.secure_sum.roster import FEWEST, MOST_ROUNDS
from cofal.privacy.secure_sum.session import Session

__all__ = ["FEWEST", "MOST_ROUNDS", "Collector", "Session", "SumFailed", "public_identity", "site_identity"]
