"""Before anything is spent: what a policy gives every class, what would reach a target, what changes, and what it costs.

Torch-free but for `measure`, which is imported only when a run is measured.
"""
