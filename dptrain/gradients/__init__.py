"""Gradients of single contributions: one rule per kind of module, and the forms in which a gradient is kept."""
