"""Helpers that several kinds of test share."""
