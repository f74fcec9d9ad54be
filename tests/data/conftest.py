"""Lets the tests of this folder import the makers of small sets beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
