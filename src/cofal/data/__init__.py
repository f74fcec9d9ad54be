"""Image sets from the formats people have, decoded once into a cache, and their division among clients."""
