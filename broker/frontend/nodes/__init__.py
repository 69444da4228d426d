"""Nodes that answer requests: `$cbs` and `$management`."""
