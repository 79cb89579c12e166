"""`dptrain policy`: write, explain, sign and show the rules that the guarantee rests on."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from attest import signed_file
from attest.errors import PolicyRefused
from attest.files import atomic_write
from attest.keys.signers import as_signer
from attest.policy import Policy, SignedPolicy, sign_policy
from attest.policy.mechanism import COEFFICIENTS, MechanismRule
from attest.policy.sampling import CYCLIC, CYCLIC_POISSON, OCCURRENCES_PUBLIC, SECRET_DRAWS
from attest.policy.signed import coefficients_file
from attest.policy.unbuilt import NOT_BUILT
from attest.registry import open_registry
from attest.schema.rounding import rounded_up
from dptrain.accounting import unsupported
from dptrain.cli import inputs
from dptrain.cli.advice import Case, CorpusSize, consequences
from dptrain.cli.advice.case import admitted, attested
from dptrain.cli.advice.drawn import drawn_text
from dptrain.cli.advice.findings import check_text
from dptrain.cli.advice.generation import generation_facts
from dptrain.cli.complete import class_counts
from dptrain.cli.gate import judge
from dptrain.cli.options import argument, file_argument, file_option, option, wrong_if
from dptrain.cli.output import counting, number, styled, table_of
from dptrain.cli.results import Shown, Told, plain
from dptrain.planning.changes import noise_lines, noise_of, with_noise
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
    device: Annotated[
        str | None,
        option("Measure where this device draws noise of each family, and how fast.", metavar="cpu|cuda|cuda:N|mps|auto"),
    ] = None,
    owner_key: inputs.OwnerKey = None,
    registry: inputs.RegistryFile = None,
) -> Told:
    """Say in words what a policy promises and costs, warn of likely mistakes, and say what would mend them.

    After every edit, before signing, and as a contributor before you sign under it. With the size of the corpus it says more.
    Each likely mistake comes with the setting to change and a value for it. Every epsilon is of one contribution, not of a
    person.

    With `--device` it takes a second or two more, and needs torch: for every family, whether a run draws its noise on the
    processor (`noise_generator = "host"`) and on the device (`"device"`), and nanoseconds of a coordinate, measured now.

    Example: `dptrain policy check policy.toml --contributions sensitive=10000 --contributions general=50000`
    """
    speed = None if device is None else inputs.load_training("dptrain.noise.speed")
    where = None if speed is None else speed.device_of(device)
    rules, signed = inputs.read_policy(policy, owner_key)
    refused = unsupported(rules)
    size = _size(policy, rules, signed is not None, contributions or [], corpus, registry, owner_key)
    known = _registry(policy, registry, owner_key)
    found = tuple(generation_facts(rules))
    if not refused and any(rule.trained for rule in rules.classes):
        trained = rules.for_training()
        with counting("computing epsilon"):
            plan = make_plan(trained, layers, hasty=True)
            case = Case(trained, plan, size, seconds_per_step=seconds_per_step, now=int(time.time()), **known)
            found = (*consequences(case), *found)
    warnings = sum(item.level == "warning" for item in found)
    data = {
        "supported": not refused,
        "unsupported": list(refused),
        "contributions": None if size is None else {"basis": size.basis, "classes": dict(size.classes)},
        "warnings": warnings,
        "consequences": [item.as_json() for item in found],
    }
    text: Iterable[Shown] = check_text(rules, size, refused, found)
    if speed is not None:
        with counting("measuring noise"):
            drawn = speed.survey(rules, where)
        data["noise"] = drawn.as_json()
        text = chain(text, drawn_text(drawn))
    return Told(data, text, exit_code=bool(refused or (strict and warnings)))


def noise(
    policy: inputs.PolicyFile,
    family: Annotated[
        str | None,
        option(
            "Take this one: banded_toeplitz, banded_inverse, buffered_toeplitz or dense; default: compare them.", metavar="WORD"
        ),
    ] = None,
    matrix: Annotated[
        Path | None,
        file_option("FILE", "Take the strategy of this matrix C: .npy, or numbers with a row a line; a row for every step."),
    ] = None,
    inverse: Annotated[bool, option("The matrix is C^-1, by which noise is correlated.", "--inverse")] = False,
    bands: Annotated[int | None, option("Bands of the first two: diagonals that are not zero.", metavar="B", min=2)] = None,
    buffers: Annotated[int | None, option("Buffers of buffered_toeplitz.", metavar="M", min=1, max=8)] = None,
    groups: Annotated[
        int | None,
        option("Draw in secret from so many groups in turn (cyclic_poisson), as many as bands or more.", metavar="G", min=2),
    ] = None,
    best: Annotated[bool, option("Take the best of the comparison that fits into a policy.", "--best")] = False,
    objective: Annotated[str, option("Least mean or max over the sums of the run.", metavar="mean|max")] = "mean",
    momentum: Annotated[float, option("Momentum of the optimizer, where sums have it.", min=0.0, max=0.999)] = 0.0,
    target_epsilon: Annotated[
        list[str] | None,
        option(
            "Compare at this epsilon of all classes or of one, not at that of their presets; repeat.",
            metavar="[CLASS=]E",
            autocompletion=class_counts,
        ),
    ] = None,
    plot: inputs.PlotFile = None,
    write: Annotated[bool, option("Put the noise into POLICY.toml; nothing else in it changes.", "--write")] = False,
    owner_key: inputs.OwnerKey = None,
) -> Told:
    """Compare noise that is correlated between steps at equal epsilon, and put a strategy into a policy.

    The table says which multiplier each strategy needs in each class, and what noise is left in the sums of a run. It counts
    public turns; of independent noise and of bands secret draws too, which amplify. With `--best` or `--family` come the lines
    of [noise], with all coefficients, and what they cost each class.

    Nothing is written but what `--plot` names, and POLICY.toml with `--write`, which must be signed anew then; the coefficients
    of a dense strategy, or of a matrix, go into POLICY.coefficients beside it, and the policy has their SHA-256.

    Example: `dptrain policy noise policy.toml --best`
    """
    size = _size_of_strategy(family, bands, buffers, best)
    wrong_if(matrix is not None and (best or family), "--matrix brings a strategy; leave out --best and --family")
    wrong_if(inverse and matrix is None, "--inverse says what the file of --matrix holds; give that")
    taken, own = best or family is not None or matrix is not None, family is not None or matrix is not None
    wrong_if(write and not taken, "--write needs the noise to write; give --best, --matrix, or --family with its size")
    wrong_if(
        write and policy.suffix != ".toml", f"{policy} is not a .toml file; write into what a person can read, then sign it"
    )
    wrong_if(plot is not None and own, "--plot draws the comparison; leave out --family and --matrix")
    wrong_if(groups and family != "banded_toeplitz", "--groups goes with --family banded_toeplitz; a comparison tries its own")
    inputs.require_plot(plot)
    rules, signed = _under_independent_noise(policy, owner_key)
    goals = inputs.goals_of(target_epsilon or [], rules)
    strategies = inputs.load_training("dptrain.planning.candidates")
    data: dict[str, Any] = {}
    text: list[Shown] = []
    with counting("searching strategies"):
        aim = strategies.aim_of(rules, signed, goals, objective, momentum)
        compared = None if own else strategies.compare(aim)
        if compared is not None:
            data |= compared.as_json()
            text += _comparison_text(compared, strategies.cells)
            if plot is not None:
                compared.figure().write(plot, compared.tables())
                text.append(f"wrote {plot}")
        if taken:
            if compared is None:
                strategy = (
                    strategies.given(matrix, aim.steps, inverse=inverse)
                    if matrix is not None
                    else strategies.searched(aim, family, size)
                )
                data |= strategies.told(aim)
            else:
                strategy, groups = compared.best_here.strategy, compared.best_here.groups
            rule, strategy = strategies.to_sign(strategy, aim.steps)
            costs = strategies.costs(aim, strategy, groups or 0)
            data |= {"noise": _noise_json(rule), "costs": costs, "groups": groups or None, "written": write}
            text += _noise_text(rules, rule, costs, aim.delta, groups or 0)
    if write:
        refused = _write_noise(policy, rule)
        data["refused"] = refused
        beside = f" and {coefficients_file(policy)}" if rule.digest is not None else ""
        text.append(f"wrote {policy}{beside}; sign it anew: dptrain policy sign {policy}")
        text += [] if refused is None else [styled("yellow", "!", f" {refused}")]
    return Told(data, text)


def sign(
    policy: Annotated[Path, file_argument("POLICY.toml", "The rules.")],
    key: Annotated[
        Path | None,
        file_option(
            "KEY",
            "Private key of the corpus owner, or its .pub file, to sign with the SSH agent that holds it; default: "
            "owner.key beside the policy.",
        ),
    ] = None,
    registry: inputs.RegistryFile = None,
    out: Annotated[Path | None, option("Signed file; default: the policy's name with .cose.", metavar="POLICY.cose")] = None,
    owner: Annotated[
        str | None, option("Identifier of the owner; default: the name in the .pub file beside the key.")
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
    beside = _coefficients(rules, policy, target)
    known = open_registry(inputs.beside(policy, registry, "registry.cbor", "--registry"), as_signer(private_key).public_key)
    payload, message = sign_policy(rules, private_key, owner=name, registry_root=known.root())
    if beside is not None:
        atomic_write(coefficients_file(target), beside)
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


def _coefficients(rules: Policy, path: Path, target: Path) -> bytes | None:
    """Returns what must be written beside a signed policy, None for nothing.

    Raises:
        PolicyRefused: code COEFFICIENTS, those that the policy has the digest of are not here, or others are in the way.
    """
    rule, wanted = rules.mechanism, coefficients_file(target)
    if rule.digest is None:
        return None
    if rule.coefficients is None:
        told = f"the policy has the digest of coefficients that are not here; put them into {coefficients_file(path)}"
        raise PolicyRefused(COEFFICIENTS, f"{told}, so that you sign what you have")
    if wanted == coefficients_file(path):
        return None
    inputs.refuse_to_overwrite(wanted)
    return rule.coefficients


def _size_of_strategy(family: str | None, bands: int | None, buffers: int | None, best: bool) -> int | None:
    """Returns the bands or buffers of a family. Raises typer.BadParameter: the options do not say one strategy."""
    wrong_if(best and family is not None, "--best takes the family that is best; leave out --family")
    if family is None:
        wrong_if(bands or buffers, "--bands and --buffers say the size of one --family; name it, or leave them out")
        return None
    wrong_if(family == "banded", "a banded strategy with columns of its own is brought by --matrix; there is no search for it")
    if family == "dense":
        wrong_if(bands or buffers, "dense has no size; leave out --bands and --buffers")
        return 0
    known = ("banded_toeplitz", "banded_inverse", "buffered_toeplitz", "dense")
    wrong_if(family not in known, f"there is no strategy {family!r} to search for; take {', '.join(known)}")
    own, other = (buffers, bands) if family == "buffered_toeplitz" else (bands, buffers)
    names = ("--buffers M", "--bands") if family == "buffered_toeplitz" else ("--bands B", "--buffers")
    wrong_if(own is None or other is not None, f"{family} has a size of its own: give {names[0]}, and leave out {names[1]}")
    return own


def _under_independent_noise(path: Path, owner_key: Path | None) -> tuple[Policy, MechanismRule]:
    """Returns a policy as it would be with Gaussian noise, independent between steps, and the noise that it says."""
    try:
        rules, _ = inputs.read_policy(path, owner_key)
    except PolicyRefused as error:
        if error.code != NOT_BUILT or path.suffix != ".toml":
            raise
        text = path.read_text(encoding="utf-8")
        return Policy.from_toml(with_noise(text, MechanismRule())), noise_of(text)
    correlated = rules.mechanism.digest is not None or rules.mechanism.parameters is not None
    return (replace(rules, mechanism=MechanismRule()) if correlated else rules), rules.mechanism


def _write_noise(path: Path, rule: MechanismRule) -> str | None:
    """Writes the noise into the text of a policy, and returns why no run may begin under it yet, if that is so."""
    found, refused = with_noise(path.read_bytes().decode("utf-8"), rule), None
    try:
        Policy.from_toml(found)
    except PolicyRefused as error:
        if error.code != NOT_BUILT:
            raise
        refused = str(error)
    if rule.coefficients is not None:
        atomic_write(coefficients_file(path), rule.coefficients)
    atomic_write(path, found.encode("utf-8"))
    return refused


def _noise_json(rule: MechanismRule) -> dict[str, Any]:
    return {"family": rule.name, "parameters": plain(rule.parameters), "toml": "\n".join(["[noise]", *noise_lines(rule), ""])}


def _comparison_text(compared: Any, cells: Any) -> Iterator[Shown]:
    """Yields the candidates by their worst ratio, then in each class."""
    aim = compared.aim
    workload = f"momentum {aim.momentum:g}" if aim.momentum else "a constant learning rate"
    yield f"corpus {aim.corpus}, {aim.steps:,} steps, delta {aim.delta:g}, {aim.accountant}; sums of SGD with {workload}"
    several = len(aim.goals) > 1
    if several:
        names = {"strategy": lambda item: item.name, "kept": lambda item: str(item.kept)}
        yield table_of(
            compared.candidates,
            names
            | {
                "largest ratio": lambda item: f"{item.worst:.3f}",
                "in class": lambda item: max(item.ratios, key=item.ratios.get),
                "choice": lambda item: _mark(compared, item),
            },
        )
    for goal in aim.goals:
        turns = f"one turn in {goal.period:,} steps, {goal.turns.times(aim.steps):,} in all"
        preset = number(goal.noise_multiplier)
        yield f"class {goal.name}: epsilon {rounded_up(goal.epsilon)}; {turns}; its preset multiplier is {preset}"
        rows = [(item, cells(item, goal.name)) for item in compared.candidates]
        columns = ("kept", "multiplier", "sensitivity", "in a step", "RMSE", "ratio")
        shown: dict[str, Any] = {"strategy": lambda row: row[0].name}
        shown |= {name: (lambda row, place=place: row[1][place]) for place, name in enumerate(columns)}
        yield table_of(rows, shown if several else shown | {"choice": lambda row: _mark(compared, row[0])})
    yield (
        "kept: numbers for each coordinate between steps; multiplier: noise of one occurrence over the clip norm, for that "
        "epsilon; in a step: noise of one step, which later ones take back in part; RMSE: of the noise in the sums "
        f"({'mean over them' if aim.objective == 'mean' else 'the largest'}), both in clip norms; ratio: of the RMSE to that "
        "of the best independent noise"
    )
    if several:
        yield "one strategy serves all classes: the best is that whose largest ratio is least; no class is worse off than that"
    found = {"best": compared.best, "best that --best takes": compared.best_here}
    for which, item in found.items() if compared.best is not compared.best_here else [("best", compared.best)]:
        yield f"{which}: {item.name}, with {item.worst:.3f} of the noise in the sums that the best independent noise leaves"
    for sentence in compared.left_out:
        yield f"left out: {sentence}"


def _mark(compared: Any, item: Any) -> str:
    """Returns what stands at the end of a row."""
    return "best" if item is compared.best else "best to write" if item is compared.best_here else ""


def _noise_text(
    rules: Policy, rule: MechanismRule, costs: list[dict[str, Any]], delta: float, groups: int
) -> Iterator[Shown]:
    """Yields the lines of a policy, and what they cost."""
    yield "\n".join(["[noise]", *noise_lines(rule), ""])
    yield table_of(
        costs,
        {
            "class": lambda row: row["class"],
            **({"rate": lambda row: number(row["sampling_rate"])} if groups else {}),
            **({} if groups else {"sensitivity": lambda row: number(row["sensitivity"])}),
            "preset multiplier": lambda row: number(row["preset_multiplier"]),
            "epsilon": lambda row: rounded_up(row["epsilon"]),
            "for epsilon": lambda row: rounded_up(row["target_epsilon"]),
            "multiplier": lambda row: rounded_up(row["noise_multiplier"]),
            "RMSE": lambda row: number(row["rmse"]),
        },
    )
    yield f"epsilon: of the preset multiplier over all turns, delta {delta:g}; multiplier: the least for the epsilon before it"
    if groups:
        if rules.sampling.groups != groups:
            yield (
                f'draws from {groups} groups are counted: set disclosure = "{SECRET_DRAWS}", order = "{CYCLIC_POISSON}" and '
                f"parameters = {{ groups = {groups} }} under [sampling], and in each class the sampling_rate above"
            )
    elif rules.sampling.name != CYCLIC or rules.disclosure != OCCURRENCES_PUBLIC:
        yield f'turns are counted: set disclosure = "{OCCURRENCES_PUBLIC}", and order = "{CYCLIC}" under [sampling]'


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
