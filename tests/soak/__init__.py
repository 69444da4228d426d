"""Mixed clients over a long time: how much memory, disk and how many descriptors the broker uses, and how
long it makes others wait.
"""
