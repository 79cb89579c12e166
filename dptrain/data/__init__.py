"""From admitted contributions to microbatches: sample, pack and load what one step draws."""
