"""Clip each contribution to its signed bound, and add up what is left: fast, certified, and without a bound."""
