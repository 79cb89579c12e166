"""Compares ways to write text from private references: utility against model calls and epsilon, every arm in one loop.

    python -m benchmarks.ink.run --world FOLDER --out benchmarks/ink.json --plot curve.svg

`baselines` has the arms, `metrics` what is measured, `topicworld` a language whose topics show whether references were used.
"""
