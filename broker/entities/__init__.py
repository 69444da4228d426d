"""Entities as data: descriptions, validation, and the documents that the catalogue keeps."""
