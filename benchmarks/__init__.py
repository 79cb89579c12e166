"""Step cost of private training against non-private training and against Opacus, side by side in one run."""
