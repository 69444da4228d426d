"""The real image, built from the Dockerfile with whatever builder the machine has: `make image-test`."""
