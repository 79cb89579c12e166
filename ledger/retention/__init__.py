"""Keeps what stays when bodies go: summaries, what they add up, and who vouches for them."""
