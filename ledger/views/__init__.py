"""The record told: summary, posture, and what became of one contribution."""
