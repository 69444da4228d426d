"""Mixed clients for a long time, and what the broker takes meanwhile: memory, descriptors, disk, and how long
it makes others wait."""
