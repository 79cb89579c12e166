"""Tells what a record says: in figures, of one contribution, and of those who withdrew."""
