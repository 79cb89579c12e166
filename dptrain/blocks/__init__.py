"""The model as blocks that a policy names: layers, heads, experts, adapters and slices of them."""
