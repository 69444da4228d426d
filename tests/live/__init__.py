"""The official SDKs' own live test suites, run unchanged against the broker by `make interop`."""
