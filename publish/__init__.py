"""Locks what is installed, and makes what is published: `make lock`, `make dist`."""
