"""Plans a run before anything is spent: what a policy gives every class, what reaches a target, what changes, what it costs.

Torch-free but for `measure`, which is imported only when a run is measured.
"""
