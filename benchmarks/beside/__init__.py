"""Whole programs beside one another: without privacy, with Opacus, and with dptrain; each runs by itself with ``python -m``."""
