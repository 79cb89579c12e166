"""`dptrain policy`: write, explain, sign and show the rules that the guarantee rests on."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from attest import signed_file
from attest.files import atomic_write
from attest.keys.signers import as_signer
from attest.policy import Policy, SignedPolicy, sign_policy
from attest.registry import open_registry
from dptrain.accounting import unsupported
from dptrain.cli import inputs
from dptrain.cli.advice import Case, Consequence, CorpusSize, consequences
from dptrain.cli.advice.case import admitted, attested
from dptrain.cli.advice.findings import check_text
from dptrain.cli.complete import class_counts
from dptrain.cli.gate import judge
from dptrain.cli.options import argument, file_argument, file_option, option, wrong_if
from dptrain.cli.output import counting
from dptrain.cli.results import Told
from dptrain.planning.plan import make_plan

_TEMPLATE = Path(__file__).with_name("policy_template.toml")

Layers = Annotated[int, option("Layers of the model, for the table of blocks.", min=1, max=4096)]


def init(
    path: Annotated[Path, argument("The file to write.", metavar="POLICY.toml")] = Path("policy.toml"),
    corpus: Annotated[str, option("Identifier of the corpus.")] = "my-corpus",
) -> Told:
    """Write a commented policy to start from; never over an existing file.

    Example: `dptrain policy init policy.toml --corpus clinic-notes-2026`
    """
    inputs.refuse_to_overwrite(path)
    text = _TEMPLATE.read_text(encoding="utf-8").replace("@CORPUS@", corpus)
    Policy.from_toml(text)
    atomic_write(path, text.encode())
    return Told({"path": str(path), "corpus": corpus}, [f"wrote {path}; edit it, then: dptrain policy check {path}"])


def check(
    policy: inputs.PolicyFile,
    contributions: Annotated[
        list[str] | None,
        option(
            "Contributions of a class in the corpus; repeat for every class.", metavar="CLASS=N", autocompletion=class_counts
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        option("Count them in this corpus: admitted, or for a .toml what is attested.", metavar="CORPUS", exists=True),
    ] = None,
    strict: Annotated[bool, option("Exit with 1 if there is any warning.", "--strict")] = False,
    layers: Layers = 12,
    seconds_per_step: Annotated[
        float, option("Pace of training; the validity of attestations is compared with it.", min=0.001)
    ] = 10.0,
    owner_key: inputs.OwnerKey = None,
    registry: inputs.RegistryFile = None,
) -> Told:
    """Say in words what a policy promises and costs, warn of likely mistakes, and say what would mend them.

    After every edit, before signing, and as a contributor before you sign under it. With the size of the corpus it says more.
    Each likely mistake comes with the setting to change and a value for it. Every epsilon is of one contribution, not of a
    person.

    Example: `dptrain policy check policy.toml --contributions sensitive=10000 --contributions general=50000`
    """
    rules, signed = inputs.read_policy(policy, owner_key)
    refused = unsupported(rules)
    size = _size(policy, rules, signed is not None, contributions or [], corpus, registry, owner_key)
    known = _registry(policy, registry, owner_key)
    found: tuple[Consequence, ...] = ()
    if not refused:
        with counting("computing epsilon"):
            plan = make_plan(rules, layers, hasty=True)
            found = consequences(Case(rules, plan, size, seconds_per_step=seconds_per_step, now=int(time.time()), **known))
    warnings = sum(item.level == "warning" for item in found)
    data = {
        "supported": not refused,
        "unsupported": list(refused),
        "contributions": None if size is None else {"basis": size.basis, "classes": dict(size.classes)},
        "warnings": warnings,
        "consequences": [item.as_json() for item in found],
    }
    return Told(data, check_text(rules, size, refused, found), exit_code=bool(refused or (strict and warnings)))


def sign(
    policy: Annotated[Path, file_argument("POLICY.toml", "The rules.")],
    key: Annotated[
        Path | None,
        file_option(
            "KEY",
            "Private key of the corpus owner, or its .pub file, to sign with the SSH agent that holds it; default: "
            "owner.key inputs.beside the policy.",
        ),
    ] = None,
    registry: inputs.RegistryFile = None,
    out: Annotated[Path | None, option("Signed file; default: the policy's name with .cose.", metavar="POLICY.cose")] = None,
    owner: Annotated[
        str | None, option("Identifier of the owner; default: the name in the .pub file inputs.beside the key.")
    ] = None,
    passphrase_file: inputs.PassphraseFile = None,
) -> Told:
    """Bind a policy to a contributor registry and sign it as the corpus owner.

    When `dptrain policy check` says what you want to promise. What is signed binds the gate, training and audit; changing a
    rule means signing a new policy, enrolling a contributor does not.

    Example: `dptrain policy sign policy.toml`
    """
    wrong_if(policy.suffix != ".toml", f"{policy} is not a .toml file; sign what a person can read")
    rules, _ = inputs.read_policy(policy, None)
    private_key, name = inputs.load_key(inputs.beside(policy, key, "owner.key", "--key"), passphrase_file, owner, "--owner")
    target = out or policy.with_suffix(".cose")
    inputs.refuse_to_overwrite(target)
    known = open_registry(inputs.beside(policy, registry, "registry.cbor", "--registry"), as_signer(private_key).public_key)
    payload, message = sign_policy(rules, private_key, owner=name, registry_root=known.root())
    signed_file.write(target, payload, message)
    missing = sorted({c for item in known.contributors for c in item.classes} - {rule.name for rule in rules.classes})
    note = "note: the registry grants class {}, which the policy does not have"
    return Told(
        {"path": str(target), "owner": name, "registry_root": known.root().hex(), "unknown_classes": missing},
        [f"signed {target} as {name}; registry root {known.root().hex()}", *map(note.format, missing)],
    )


def show(policy: inputs.PolicyFile, owner_key: inputs.OwnerKey = None) -> Told:
    """Verify the owner's signature and show every field, as the text of a policy.

    Example: `dptrain policy show policy.cose --owner-key owner.pub`
    """
    signed = inputs.read_signed_policy(policy, owner_key)
    data = _as_json(signed)
    return Told(
        data,
        [
            f"# signed by {signed.owner}, digest {signed.digest.hex()}",
            f"# registry root {data['policy']['registry_root'] or 'none'}\n",
            signed.policy.to_toml().rstrip("\n"),
        ],
    )


def _size(
    path: Path,
    rules: Policy,
    signed: bool,
    given: list[str],
    corpus: Path | None,
    registry: Path | None,
    owner_key: Path | None,
) -> CorpusSize | None:
    """Returns the size of the corpus: counted, then corrected by what was given by hand."""
    by_hand = dict(inputs.count_of(text, rules) for text in given)
    if corpus is None:
        return CorpusSize("given", by_hand) if given else None
    if signed:
        size = admitted(judge(rules, path, corpus, registry, None, owner_key)[0])
    else:
        with counting("counting") as progress:
            size = attested(corpus, rules, progress)
    return replace(size, classes={**size.classes, **by_hand})


def _registry(path: Path, registry: Path | None, owner_key: Path | None) -> dict[str, Any]:
    """Says what a registry has of a case: classes granted, contributors, their keys; nothing if none can be verified."""
    at_hand = path.with_name("registry.cbor").is_file() and (owner_key or path.with_name("owner.pub")).is_file()
    if registry is None and not at_hand:
        return {}
    found = inputs.read_registry(path, registry, owner_key)
    parties = {key.raw: f"the contributor {item.name}" for item in found.contributors for key in item.keys}
    return {
        "granted": frozenset(name for item in found.contributors for name in item.classes),
        "enrolled": len(found.contributors),
        "parties": {**parties, found.owner_key: f"the corpus owner {found.owner}"},
    }


def _as_json(signed: SignedPolicy) -> dict[str, Any]:
    return {"owner": signed.owner, "digest": signed.digest.hex(), "policy": signed.policy.as_json()}
