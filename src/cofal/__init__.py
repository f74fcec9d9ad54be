"""cofal: which few images should each site of a federation label?"""

__version__ = "0.1.0"
