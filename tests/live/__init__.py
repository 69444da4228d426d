"""The official SDKs' own live test suites, unchanged, against a running broker: `make interop` runs them."""
