"""Per-sample gradients in their cheapest exact form: one rule a layer."""
