"""Proofs about single leaves and sizes, what auditors sign, and what shows a third person a fork."""
