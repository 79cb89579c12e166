"""`dptrain registry`: create a registry, enrol contributors one by one or from a file, grant and revoke classes and keys."""

import base64
import binascii
import csv
import difflib
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from attest import keys
from attest.errors import AttestError, RegistryRefused
from attest.registry import Action, Enrol, KeyStatement, Prove, Registry, RegistryLog, Rotate
from attest.registry.entries import PROVE, REVOKE, ROTATE, read_statement, signing_key
from attest.schema.plain import check_id, utc
from dptrain.cli.complete import POLICIES, class_names, contributors
from dptrain.cli.complete import classes as known_classes
from dptrain.cli.inputs import PassphraseFile, load_key, octets
from dptrain.cli.options import argument, file_option, moment, option, parse_time, wrong_if
from dptrain.cli.output import counting, styled
from dptrain.cli.registry.show import ExistingRegistry, as_json
from dptrain.cli.results import Told

_DAY = 86400

NewRegistry = Annotated[Path, argument("Registry file, registry.cbor.", metavar="REGISTRY", dir_okay=False)]
SigningKey = Annotated[
    Path | None,
    file_option(
        "KEY",
        "Private key of the corpus owner, or the .pub file, to sign with the SSH agent that holds it; default: owner.key "
        "beside the registry.",
    ),
]
OwnerName = Annotated[
    str | None, option("Identifier of the corpus owner, for a new registry; default: the name in the .pub file.")
]


def init(
    registry: NewRegistry, key: SigningKey = None, owner: OwnerName = None, passphrase_file: PassphraseFile = None
) -> Told:
    """Start a registry in which nobody is enrolled yet, so that a policy can be signed for it.

    Whoever is enrolled later needs no new signature under the policy.

    Example: `dptrain registry init registry.cbor --key owner.key`
    """
    log = _create(registry, key, owner, passphrase_file)
    return _changed(log.registry, f"started the registry of {log.registry.owner}, id {log.registry.registry_id.hex()}")


def add(
    registry: NewRegistry,
    pub: Annotated[Path | None, file_option("PUB", "Public key file.")] = None,
    table_file: Annotated[
        Path | None,
        file_option(
            "FILE",
            "Enrol everybody in a .jsonl or .csv file with the fields key (a line of a .pub file, or base64), "
            "contributor, classes (in .csv separated by blanks), cap, principal, not_before, not_after; all but key may "
            "be left out, and come from the options then.",
            "--from",
        ),
    ] = None,
    classes: Annotated[
        list[str] | None, option("Class that may be attested; repeat.", "--class", autocompletion=known_classes)
    ] = None,
    contributor: Annotated[
        str | None, option("Identifier of the contributor; default: the name in the public key file.")
    ] = None,
    not_before: Annotated[int | None, moment("First moment of the key; default: now.")] = None,
    days: Annotated[int, option("Days for which the key is valid.", min=1)] = 730,
    cap: Annotated[int | None, option("Contributions admitted at most from this contributor.", min=0)] = None,
    principal: Annotated[str | None, option("Person or group behind this and other contributors.")] = None,
    statement: Annotated[
        Path | None,
        file_option("FILE", "As attest prove wrote it: the contributor holds the key. Without it that is your word."),
    ] = None,
    allow_look_alike: Annotated[
        bool,
        option("Enrol a name that looks like an enrolled one, such as a1ice beside alice, all the same.", "--allow-look-alike"),
    ] = False,
    key: SigningKey = None,
    owner: OwnerName = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Enrol public keys and grant classes; makes the registry if it is missing.

    Every key is checked for weakness first. Who is enrolled already gets a further key, and classes on top of those granted
    before. A new name that a person would take for an enrolled one is refused.

    When a contributor's .pub file has reached you by a way that you trust. The policy need not be signed again: the gate
    accepts every later state of the registry that it names.

    Example: `dptrain registry add registry.cbor --pub alice.pub --class sensitive --cap 5000`
    """
    wrong_if((pub is None) == (table_file is None), "give one public key with --pub, or a file with many with --from")
    now = int(time.time())
    start = now if not_before is None else not_before
    until = start + days * _DAY
    terms = {"classes": classes or (), "not_before": start, "not_after": until, "cap": cap, "principal": principal}
    if pub is not None:
        wrong_if(not classes, "give --class once or more: what the contributor may attest")
        name, raw = keys.load_named_public_key(pub)
        wanted = [_enrolment(contributor or name, raw, terms)]
    else:
        if contributor is not None or statement is not None:
            raise typer.BadParameter("--contributor and --statement go with --pub; a file says itself whose keys it holds")
        wanted = read_enrolments(table_file or Path(), terms)
    proofs = []
    if statement is not None:
        found, messages = _statement(statement, PROVE)
        proofs = [Prove(found.to_cbor(), *messages)]
    log = _open(registry, key, passphrase_file) if registry.exists() else _create(registry, key, owner, passphrase_file)
    with counting("checking keys") as progress:
        actions: list[Action] = [*wanted, *proofs]
        changed = log.append(actions, now=now, progress=progress, look_alikes=allow_look_alike)
    notes = _unknown(registry, (name for action in wanted for name in action.classes))
    if pub is not None:
        granted = ", ".join(sorted(set(classes or ())))
        return _changed(changed, f"enrolled {wanted[0].name} for {granted}", [wanted[0].name], notes)
    return _changed(changed, f"enrolled {len(wanted)} keys", [], notes)


def prove(
    registry: ExistingRegistry,
    statement: Annotated[Path, file_option("FILE", "As attest prove wrote it.")],
    key: SigningKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Take in a contributor's proof that it holds a key which is enrolled already.

    It shows that the holder of the key signed for this registry. Who the holder is, and its name, remain your word.

    Example: `dptrain registry prove registry.cbor --statement alice-possession.cose`
    """
    found, messages = _statement(statement, PROVE)
    action = Prove(found.to_cbor(), *messages)
    changed = _open(registry, key, passphrase_file).append([action], now=int(time.time()))
    short, name = keys.key_id(found.key or b"").hex(), _holder(changed, found.key)
    return _changed(changed, f"{name} proved that it holds key {short}", [name])


def grant(
    registry: ExistingRegistry,
    contributor: Annotated[str, option("Identifier of the contributor.", autocompletion=contributors)],
    classes: Annotated[
        list[str] | None, option("Class that may be attested; repeat.", "--class", autocompletion=known_classes)
    ] = None,
    nothing: Annotated[bool, option("Take every class away.", "--none")] = False,
    cap: Annotated[int | None, option("Contributions admitted at most; left out, the policy's cap holds.", min=0)] = None,
    key: SigningKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Set exactly what a contributor may attest: these classes and no others, and this cap.

    A class that is taken away is refused at the gate from then on.

    Example: `dptrain registry grant registry.cbor --contributor alice --class general --cap 500`
    """
    wrong_if(bool(classes) == nothing, "give --class once or more, or --none to take every class away")
    log = _open(registry, key, passphrase_file)
    changed = log.grant(contributor, classes=classes or (), cap=cap, now=int(time.time()))
    granted = ", ".join(sorted(set(classes or ()))) or "nothing"
    return _changed(changed, f"{contributor} may attest {granted}", [contributor], _unknown(registry, classes or ()))


def rotate(
    registry: ExistingRegistry,
    statement: Annotated[Path, file_option("FILE", "As attest rotate wrote it.")],
    not_before: Annotated[int | None, moment("First moment of the new key; default: now.")] = None,
    days: Annotated[int, option("Days for which the new key is valid.", min=1)] = 730,
    old_until: Annotated[int | None, moment("First moment at which the old key admits nothing more; default: now.")] = None,
    key: SigningKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Take in a contributor's change of key: the old key signed it, and the new one proves that it is the contributor's.

    What was signed with the old key and is admitted stays in use. What is not admitted yet is refused once the old key
    has ended, so leave it valid with --old-until while such attestations are on their way.

    Example: `dptrain registry rotate registry.cbor --statement alice-rotation.cose --old-until 2026-12-31`
    """
    found, messages = _statement(statement, ROTATE)
    now = int(time.time())
    start = now if not_before is None else not_before
    log = _open(registry, key, passphrase_file)
    end = _end_of_old(log.registry, found, now, old_until)
    action = Rotate(found.to_cbor(), messages[0], messages[1], start, start + days * _DAY, end)
    changed = log.append([action], now=now)
    new, name = keys.key_id(found.new_key or b"").hex(), _holder(changed, found.key)
    return _changed(changed, f"{name} has the new key {new}", [name])


def revoke(
    registry: ExistingRegistry,
    contributor: Annotated[str | None, option("Identifier of the contributor.", autocompletion=contributors)] = None,
    key_id: Annotated[str | None, option("One key; default: all keys.", metavar="HEX")] = None,
    at: Annotated[int | None, moment("From when on; default: now.")] = None,
    statement: Annotated[Path | None, file_option("FILE", "What the contributor signed.")] = None,
    key: SigningKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Revoke a contributor's keys from a moment on, as the owner or with the contributor's own statement.

    A run that is training notices at its next charge, and draws what these keys signed no more. What was charged before
    stands in the ledger.

    Example: `dptrain registry revoke registry.cbor --contributor alice`
    """
    now = int(time.time())
    wrong_if((contributor is None) == (statement is None), "give --contributor, or the contributor's own --statement")
    if statement is not None:
        if key_id is not None or at is not None:
            raise typer.BadParameter("the statement says which key and from when; leave out --key-id and --at")
        found, messages = _statement(statement, REVOKE)
        changed = _open(registry, key, passphrase_file).revoke_own(found, messages[0], now=now)
        contributor, from_when = _holder(changed, found.key or signing_key(messages[0])), found.revoked_at or 0
        which = "all keys" if found.key is None else keys.key_id(found.key).hex()
    else:
        contributor, from_when, which = contributor or "", now if at is None else at, key_id or "all keys"
        no_id = f"{key_id!r} is not a key id in hex; 'registry show' lists them"
        chosen = None if key_id is None else octets(key_id, no_id)
        changed = _open(registry, key, passphrase_file).revoke(contributor, chosen, at=from_when, now=now)
    return _changed(changed, f"revoked {which} of {contributor} from {utc(from_when)} on", [contributor])


def set_clock(
    registry: ExistingRegistry,
    reason: Annotated[str, option("Why, in at most 200 characters of ASCII; it stands in the log.", metavar="TEXT")],
    key: SigningKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Take back the time of entries that were made while the owner's clock was ahead.

    Times never run back in the log, so such an entry would forbid every revocation until its time has come. Set the clock of
    the machine right first. Keys that were enrolled from a moment ahead on, or revoked from then on, stay so: enrol or revoke
    them again. Refused where entries can follow as it is.

    When an entry was made while the owner's clock was ahead: the gate refuses the registry, and nothing can be revoked at
    today's time.

    Example: `dptrain registry set-clock registry.cbor --reason clock-was-fifty-years-ahead`
    """
    log = _open(registry, key, passphrase_file)
    before, now = log.registry.time, int(time.time())
    changed = log.set_clock(reason, now=now)
    return _changed(changed, f"set the clock of the registry back from {utc(before)} to {utc(now)}", [])


_KINDS = {PROVE: ("proves no key", 1), ROTATE: ("is no change of key", 2), REVOKE: ("is no revocation", 1)}
"""Of statements: what one of another kind is not, and how many keys sign it."""


def _statement(path: Path, kind: str) -> tuple[KeyStatement, tuple[bytes, ...]]:
    """Returns a statement that `attest prove`, `rotate` or `revoke` wrote, and its signatures."""
    found, messages = read_statement(path)
    otherwise, signatures = _KINDS[kind]
    if found.kind != kind or len(messages) != signatures:
        raise RegistryRefused("SCHEMA", f"{str(path)!r} {otherwise}; give it to 'registry {found.kind}'")
    return found, messages


def _create(registry: Path, key: Path | None, owner: str | None, passphrase_file: Path | None) -> RegistryLog:
    signer, name = load_key(_owner_key(registry, key), passphrase_file, owner, "--owner")
    return RegistryLog.create(registry, signer, owner=check_id(name, "owner"), now=int(time.time()))


def _open(registry: Path, key: Path | None, passphrase_file: Path | None) -> RegistryLog:
    # The log itself says under which name its owner signs.
    signer, _ = load_key(_owner_key(registry, key), passphrase_file, "owner", "--owner")
    return RegistryLog(registry, signer)


def _owner_key(registry: Path, key: Path | None) -> Path:
    found = key or registry.with_name("owner.key")
    if not found.is_file():
        raise typer.BadParameter(
            f"there is no {found}; the corpus owner signs every change, so give the owner's private key with --key "
            "(make one with 'dptrain attest keygen owner')"
        )
    return found


def _end_of_old(registry: Registry, statement: KeyStatement, now: int, wanted: int | None) -> int:
    """When the old key ends: as wanted, by default now; a second after its start for a key that was enrolled just now."""
    known = registry.holder(statement.key or b"")
    record = next((item for item in known.keys if item.raw == statement.key), None) if known else None
    if record is None:
        return now if wanted is None else wanted
    if wanted is None:
        return max(now, record.not_before + 1)
    if not record.not_before < wanted <= record.not_after:
        raise typer.BadParameter(
            f"the old key is valid from {utc(record.not_before)} and ends at {utc(record.not_after)} anyway; give --old-until "
            "a time between the two, or leave it out"
        )
    return wanted


def _holder(registry: Registry, key: bytes | None) -> str:
    """Returns the name of the contributor whose key it is."""
    known = registry.holder(key or b"")
    return "nobody" if known is None else known.name


def _unknown(registry: Path, granted: Iterable[str]) -> dict[str, str]:
    """Returns the granted classes that the policy beside the registry lacks, each with a note; empty where there is no policy.

    The policy's signature is not verified: nothing but the note depends on it.
    """
    for path in map(registry.with_name, POLICIES):
        if known := list(class_names(path)):
            notes = {}
            for name in sorted(set(granted) - set(known)):
                near = difflib.get_close_matches(name, known, n=1)
                meant = f"; is {near[0]} meant? 'registry grant' sets it right" if near else ""
                notes[name] = f"{path} has no class {name}{meant}"
            return notes
    return {}


def _changed(
    registry: Registry, sentence: str, names: list[str] | None = None, unknown: Mapping[str, str] = MappingProxyType({})
) -> Told:
    """Returns what was done, and which of the classes granted the policy at hand does not have."""
    data = as_json(registry, verified=True, names=names) | {"unknown_classes": list(unknown)}
    notes = (styled("yellow", "note", f": {note}") for note in unknown.values())
    return Told(data, [f"{sentence}\nregistry root {registry.root().hex()}", *notes])


def _enrolment(name: str, raw: bytes, terms: dict[str, Any]) -> Enrol:
    return Enrol(name, raw, **terms | {"classes": tuple(sorted(set(terms["classes"])))})


def read_enrolments(path: Path, defaults: dict[str, Any]) -> list[Enrol]:
    """Returns enrolments of a `.jsonl` or `.csv` file, in its order, with default terms for what a line leaves out. Raises
    RegistryRefused: Code FORMAT, with the number of the line."""
    found = []
    for number, fields in _lines(path):
        try:
            found.append(_enrol(fields, defaults))
        except (AttestError, ValueError, typer.BadParameter) as error:
            sentence = error.sentence if isinstance(error, AttestError) else str(error)
            raise RegistryRefused("FORMAT", f"{str(path)!r}, line {number}: {sentence}") from error
    if not found:
        raise RegistryRefused("FORMAT", f"{str(path)!r} names nobody")
    return found


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RegistryRefused("FORMAT", f"{str(path)!r} is not UTF-8 text") from error
    if path.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(text))
        if len(set(rows.fieldnames or ())) != len(rows.fieldnames or ()):
            raise RegistryRefused("FORMAT", f"{str(path)!r} has a column twice")
        for number, row in enumerate(rows, start=2):
            yield number, {name: value for name, value in row.items() if value not in (None, "")}
        return
    if path.suffix != ".jsonl":
        raise RegistryRefused("FORMAT", f"{str(path)!r} is neither .jsonl nor .csv")
    for number, line in enumerate(text.split("\n"), start=1):  # other characters that end a line stand inside of JSON strings
        if line.strip():
            try:
                value = json.loads(line, object_pairs_hook=_once_each)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                raise RegistryRefused("FORMAT", f"{str(path)!r}, line {number}: not a JSON object with each field once")
            yield number, value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object; one with a field twice is refused, for a person reads the first and a program the last."""
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field stands twice")
    return dict(pairs)


def _enrol(fields: dict[str, Any], defaults: dict[str, Any]) -> Enrol:
    unknown = sorted(ascii(name)[:40] for name in fields if name not in _FIELDS)
    if unknown:
        raise ValueError(f"unknown field {', '.join(unknown)}; expected {', '.join(sorted(_FIELDS))}")
    name, raw = _key(fields.get("key"))
    terms = defaults | {field: read(fields[field]) for field, read in _TERMS.items() if field in fields}
    contributor = fields.get("contributor", name)
    if contributor is None:
        raise ValueError("no contributor is named, neither in a field nor in the key")
    if not terms["classes"]:
        raise ValueError("no class is granted; add the field classes, or --class for all lines")
    return _enrolment(check_id(contributor, "contributor"), raw, terms)


def _classes(value: Any) -> list[str]:
    found = value.split() if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError("classes are neither text nor an array")
    return [check_id(item, "class name") for item in found]


def _time(value: Any) -> int:
    return parse_time(str(value))


def _key(value: Any) -> tuple[str | None, bytes]:
    if not isinstance(value, str):
        raise ValueError("there is no key")
    name, text = None, value.strip()
    if text.startswith("dptrain-key-v1 "):
        _, name, text = [*text.split(" "), "", ""][:3]
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("the key is not base64, and not the line of a .pub file") from error
    if base64.b64encode(raw).decode("ascii") != text:
        raise ValueError("the key is base64 with stray bits at its end")
    return name, raw


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not str(value).isascii() or not str(value).isdigit():
        raise ValueError(f"cap is {ascii(value)[:40]}, expected a whole number")
    return int(value)


_TERMS: dict[str, Callable[[Any], Any]] = {
    "classes": _classes,
    "cap": _whole,
    "principal": lambda value: value,
    "not_before": _time,
    "not_after": _time,
}
"""Terms of an enrolment that a line may say, and how each is read."""

_FIELDS = {"key", "contributor", *_TERMS}
