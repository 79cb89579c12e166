"""Answer with one adapter of a release, if those who ask may hear what influenced it.

    dptrain release runs/adapters/model --ledger runs/adapters/ledger.db
    python -m recipes.language.answer runs/adapters/model --key runs/adapters/ledger.pub --base MODEL --adapter pub \\
        --allow pub=4 --prompt 'name[The Eagle], eatType[pub], near[Burger King]'

The release is checked against the export in it first. Every class that may have influenced the adapter has to be allowed, at no
less than its epsilon. Under a policy whose classes read their own adapters alone that is one class. Where it is not allowed,
the base answers.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from dptrain.errors import ConfigError
from dptrain.programs import guarded, quiet_libraries
from ledger.release import Rights, check_release, choose_artifact


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", type=Path, metavar="MODEL", help="directory of a release")
    parser.add_argument("--key", type=Path, required=True, metavar="PUB", help="public key of the ledger")
    parser.add_argument("--base", required=True, metavar="MODEL", help="hub id or directory of the model below the adapters")
    parser.add_argument("--adapter", required=True, metavar="NAME", help="the one that shall answer")
    parser.add_argument("--allow", nargs="*", default=[], metavar="CLASS=EPSILON", help="the most that each may have spent")
    parser.add_argument("--prompt", required=True)
    arguments = parser.parse_args()
    quiet_libraries()

    report = check_release(arguments.release, arguments.key.read_text().split())
    chosen = choose_artifact(report, Rights(allowed(arguments.allow)), [f"adapter:{arguments.adapter}", "base"])
    print(f"{chosen} may answer: {report.verdict}, weights {report.weights.status if report.weights else 'not judged'}")
    print(answer(arguments.base, arguments.release, chosen, arguments.prompt + "\n"))
    return 0


def allowed(given: list[str]) -> Mapping[str, float]:
    """Reads the classes that may have influenced an answer.

    Raises:
        ConfigError: code ALLOW, one is not a name and a number.
    """
    try:
        return {name: float(epsilon) for name, _, epsilon in (each.partition("=") for each in given)}
    except ValueError:
        raise ConfigError("ALLOW", f"--allow is {' '.join(given)}, expected classes with an epsilon each, as pub=4") from None


def answer(base: str, release: Path, artifact: str, prompt: str) -> str:
    """Loads the base, and the adapter where one was chosen, and returns what it writes."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from recipes.language.texts import Rows, written

    model = AutoModelForCausalLM.from_pretrained(base)
    _, _, adapter = artifact.partition(":")
    if adapter:
        model = PeftModel.from_pretrained(model, release / adapter, adapter_name=adapter)
    return written(model, Rows(AutoTokenizer.from_pretrained(release), 0), prompt)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
