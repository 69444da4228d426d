"""Sending, receiving and settling messages, shared by links, requests and every other way to a queue."""
