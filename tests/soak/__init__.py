"""Mixed clients over a long time, and what the broker uses meanwhile: memory, descriptors, disk; and how long
it makes others wait.
"""
