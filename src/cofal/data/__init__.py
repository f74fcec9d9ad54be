"""Image sets from the formats people have, decoded once into a cache, and their division among clients."""

from cofal.data.imageset import ImageSet
from cofal.data.partition import partition
from cofal.data.readers import read
from cofal.data.settings import DataSettings

__all__ = ["DataSettings", "ImageSet", "partition", "read"]
