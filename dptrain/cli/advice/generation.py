"""Say what a class promises whose contributions texts are generated from, in numbers of its signed rule."""

from collections.abc import Iterator

from attest.fixed_point import from_micro
from attest.policy import Policy
from attest.policy.classes import ClassRule, DecodingRule
from attest.schema.rounding import at_most
from dptrain.cli.advice.findings import Consequence, fact
from dptrain.cli.output import counted
from ledger.budget.rho import NANO, epsilon_of_rho


def generated(rule: DecodingRule, delta: float) -> str:
    """Says what is drawn from a contribution, what one text costs it, and what all texts together may cost it at most."""
    clip, temperature = from_micro(rule.clip_norm_micro), from_micro(rule.temperature_micro)
    text, most = rule.text_nano / NANO, rule.max_rho_nano / NANO
    among = f"out of the {rule.top_k:,} tokens likeliest without references" if rule.top_k else "out of the whole vocabulary"
    return (
        f"A text is drawn from {rule.references:,} references at temperature {temperature:g}, {among}; each moves a logit by "
        f"{clip:g}/{rule.references:,} at most. A text of at most {counted(rule.tokens, 'token')} costs each of its references "
        f"a rho of {text:.6g}, and all texts together at most {most:.6g}: epsilon {at_most(epsilon_of_rho(most, delta))} at "
        f"delta {delta:g}, against the contribution being empty. That is {counted(rule.max_rho_nano // rule.text_nano, 'text')}"
        " at most from one contribution"
    )


def generation_facts(policy: Policy) -> Iterator[Consequence]:
    """Yields what each class promises that texts are generated from."""
    for rule in policy.classes:
        if rule.generation is not None:
            found = fact("GENERATION", generated(rule.generation, float(policy.delta)) + _beside(rule))
            yield Consequence(found.level, found.code, found.sentence, class_name=rule.name)


def _beside(rule: ClassRule) -> str:
    """Says what comes beside it where the class is for training too, and what does not where it is not."""
    if rule.trained:
        return ". What training spends comes beside it: the two are not counted together"
    return ". No model is trained on the class: its clip norm, noise multiplier, sampling rate and depth say nothing"
