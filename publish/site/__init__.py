"""Builds the site of the docs: pages made from the source, links, pictures; `make docs`."""
