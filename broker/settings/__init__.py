"""Settings, the configuration file, certificates and logging."""
