"""Checking and repairing a data folder."""
