"""`dptrain attest`: a contributor's keys, attestations and withdrawals, and what it states about its own keys."""

import json
import re
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from attest import keys, signed_file
from attest.corpus import SigningTemplate, copy_unique, sign_corpus
from attest.corpus.records import SUFFIX
from attest.descriptor import PUBLIC_BOUNDS, TRAIN
from attest.errors import CorpusRefused
from attest.fixed_point import PICO, to_micro, to_pico
from attest.policy import ClassRule, Policy
from attest.registry import KeyStatement, peek
from attest.registry.entries import PROVE, REVOKE, ROTATE, write_statement
from attest.schema.plain import check_id, utc
from attest.withdrawal import Withdrawal, sign_withdrawal
from dptrain.cli import inputs
from dptrain.cli.attest.show import AttestationFile
from dptrain.cli.complete import classes
from dptrain.cli.options import argument, file_option, moment, option, wrong_if
from dptrain.cli.output import counted
from dptrain.cli.results import Told, pick
from dptrain.progress import contributions_in, progress_bar

_DAY = 86400

_REASONS = "Reason code, an identifier: consent, error, key-compromise, legal, replaced, or one of your own; no free text."

_FILE_NAME = re.compile("[a-z0-9][a-z0-9._-]*")


KeyForm = StrEnum("KeyForm", ["pem", "openssh"])
"""Forms of a private key file, as `attest.keys.save_private_key` knows them."""


def keygen(
    name: Annotated[str, argument("Identifier under which the key signs: a-z 0-9 . _ / -", metavar="NAME")],
    directory: Annotated[Path, option("Where the two files go.", "--dir", exists=True, file_okay=False)] = Path("."),
    form: Annotated[
        KeyForm, option("Form of the private key file: pem (PKCS#8), or openssh for ssh-add.", "--format")
    ] = KeyForm.pem,
    source: Annotated[
        Path | None,
        file_option(
            "FILE",
            "Take the key of this file instead of a new one: a private key, to write it in another form or with another "
            "passphrase; or an OpenSSH .pub file, whose private half stays in its agent: then NAME.pub alone is written.",
            "--from",
        ),
    ] = None,
    passphrase: Annotated[bool, option("Ask twice for a passphrase that encrypts the key.", "--passphrase")] = False,
    passphrase_file: inputs.NewPassphraseFile = None,
) -> Told:
    """Make a key pair: NAME.key, which stays with you, and NAME.pub, which you hand out.

    Corpus owners make their key the same way. Existing files are never overwritten.

    Once per contributor and once for the corpus owner, before anything is signed. Hand out the .pub file alone. If your key
    lives in an SSH agent or on a token, take its public half with `--from`.

    Example: `dptrain attest keygen alice --dir keys`
    """
    check_id(name, "name")
    stem = name.replace("/", "-")
    wrong_if(_FILE_NAME.fullmatch(stem) is None, f"{name!r} makes no file name; begin it with a letter or a digit")
    private, public = directory / f"{stem}.key", directory / f"{stem}.pub"
    inputs.refuse_to_overwrite(public)
    key = None
    if source is not None:
        with source.open("rb") as stream:
            openssh = stream.read(4) == b"ssh-"
        key = keys.load_openssh_public_key(source) if openssh else inputs.read_private_key(source, None)
    if isinstance(key, bytes):
        wrong_if(passphrase or passphrase_file, f"{source} is a public key: nothing is written that a passphrase could protect")
        raw, written = key, None
    else:
        key = key or keys.generate()
        raw, written = keys.public_bytes(key), str(private)
        keys.save_private_key(private, key, inputs.new_passphrase(passphrase, passphrase_file), form=form.value)
    keys.save_public_key(public, raw, name)
    kept = "" if written is None else f"{private} (keep it) and "
    key_id = keys.key_id(raw).hex()
    return Told(
        {"private_key": written, "public_key": str(public), "name": name, "key_id": key_id},
        [f"wrote {kept}{public} (hand it out); key id {key_id}"],
    )


def sign(
    data: Annotated[Path, argument("A file, a .jsonl file or a folder.", metavar="DATA", exists=True)],
    key: inputs.KeyFile,
    admissibility_class: Annotated[str, option("Class of the policy to be admitted under.", "--class", autocompletion=classes)],
    policy: Annotated[Path | None, file_option("POLICY", "Take corpus and bounds from this policy.")] = None,
    owner_key: Annotated[Path | None, file_option("PUB", "Owner's key, for a signed policy.")] = None,
    corpus: Annotated[str | None, option("Corpus that may use the data, and no other.")] = None,
    clip_norm: Annotated[str | None, option("Largest pull at the model in a step.", metavar="DECIMAL")] = None,
    noise_multiplier: Annotated[str | None, option("Least noise, as a multiple of the clip norm.", metavar="DECIMAL")] = None,
    contributor: inputs.Contributor = None,
    public: Annotated[
        bool, option("The data is public: for a public class, which neither clips nor adds noise.", "--public")
    ] = False,
    purpose: Annotated[
        list[inputs.Purpose] | None, option("What it may be used for, generating texts or training; repeat; default: train.")
    ] = None,
    data_class: Annotated[str, option("What kind of data it is, as an identifier.")] = "unspecified",
    not_before: Annotated[int | None, moment("First moment of validity; default: now.")] = None,
    days: Annotated[int, option("Days of validity.", min=1)] = 365,
    max_occurrences: Annotated[int, option("Draws at most, 0 for no cap.", min=0)] = 0,
    max_examples: Annotated[int | None, option("Examples that a contribution holds at most.", min=1)] = None,
    public_length: Annotated[
        int | None, option("Tokens to which each example is padded or cut, for everybody to know.", min=1)
    ] = None,
    length_field: Annotated[
        str | None,
        option("Field of each record with its number of tokens; it signs the shortest length of the class that holds them."),
    ] = None,
    unique: Annotated[
        Path | None, option("Copy DATA to this .jsonl file, every content once, and sign that one.", metavar="FILE")
    ] = None,
    max_epsilon: Annotated[
        str | None, option("Most epsilon that it may spend, over all runs together.", metavar="DECIMAL")
    ] = None,
    max_delta: Annotated[
        str | None, option("The delta of --max-epsilon; default: that of the --policy.", metavar="DECIMAL")
    ] = None,
    principal: Annotated[str | None, option("Person that several contributions are about.")] = None,
    out: Annotated[Path | None, option("Default: DATA.attest, where the gate looks.", metavar="FILE")] = None,
    passphrase_file: inputs.PassphraseFile = None,
) -> Told:
    """Sign a file, every record of a .jsonl file, or every file of a folder; one attestation per contribution.

    Bounds are rounded to six decimals on the strict side. Signing again replaces DATA.attest; attestations handed out
    before stay valid until they are withdrawn or expire.

    When data is ready to be handed over. Read `dptrain policy check POLICY` first: it says what the class promises. Stricter
    bounds than the policy's may be signed, softer ones are refused at the gate.

    Example: `dptrain attest sign notes.jsonl --key alice.key --class sensitive --policy policy.toml`
    """
    signer, name = inputs.load_key(key, passphrase_file, contributor)
    rules = None
    if policy is not None:
        rules, _ = inputs.read_policy(policy, owner_key)
        rule = rules.class_rule(admissibility_class)
        corpus, preset = corpus or rules.corpus, rule.bounds
        if rule.public is not public:
            raise typer.BadParameter(
                f"class {admissibility_class} is public in {policy}: nothing clips its contributions or hides them in noise. "
                "Repeat with --public if the data is meant to be public, or choose another class"
                if rule.public
                else f"class {admissibility_class} is not public in {policy}; leave out --public, or choose another class"
            )
    if public:
        if clip_norm is not None or noise_multiplier is not None:
            raise typer.BadParameter(
                "a public contribution has no bounds; give --public, or --clip-norm and --noise-multiplier"
            )
        wrong_if(max_epsilon is not None, "of a public contribution no epsilon is promised; give --public, or --max-epsilon")
        preset = PUBLIC_BOUNDS
    purposes = tuple(sorted({word.value for word in purpose})) if purpose else None
    if rules is not None:
        served = rules.class_rule(admissibility_class).purposes
        if beyond := [word for word in purposes or (TRAIN,) if word not in served]:
            raise typer.BadParameter(
                f"class {admissibility_class} is for {' and '.join(served)} in {policy}, asked for is {' and '.join(beyond)}; "
                "give --purpose for what the class has, or choose another class"
            )
    max_delta_pico = _delta_of_limit(max_epsilon, max_delta, rules)
    length_of = None
    if length_field is not None:
        wrong_if(public_length is not None, "--public-length is one for all, --length-field one for each; give one of them")
        if rules is None or not (rule := rules.class_rule(admissibility_class)).public_lengths:
            raise typer.BadParameter(
                f"--length-field chooses among the public_lengths of class {admissibility_class}; give a --policy whose class "
                "has some"
            )
        length_of = _lengths_by(length_field, rule)
    if public_length is not None and rules is not None:
        offered = rules.class_rule(admissibility_class).public_lengths
        told = ", ".join(map(str, offered)) or "none"
        wrong_if(
            public_length not in offered, f"class {admissibility_class} offers the public lengths {told}; sign one of them"
        )
    if corpus is None or (policy is None and not public and (clip_norm is None or noise_multiplier is None)):
        raise typer.BadParameter("give --corpus, --clip-norm and --noise-multiplier, or a --policy to take them from")
    start = int(time.time()) if not_before is None else not_before
    template = SigningTemplate(
        contributor=name,
        data_class=data_class,
        admissibility_class=admissibility_class,
        clip_norm_micro=preset.clip_micro if clip_norm is None else to_micro(clip_norm, rounding="down"),
        noise_multiplier_micro=preset.sigma_micro if noise_multiplier is None else to_micro(noise_multiplier, rounding="up"),
        corpus=corpus,
        not_before=start,
        not_after=start + days * _DAY,
        max_occurrences=max_occurrences,
        principal=principal,
        max_examples=max_examples,
        max_epsilon_micro=None if max_epsilon is None else to_micro(max_epsilon, rounding="down"),
        max_delta_pico=max_delta_pico,
        public_length=public_length,
        purposes=purposes,
    )
    repeated = 0
    if unique is not None:
        inputs.refuse_to_overwrite(unique)
        repeated, data = copy_unique(data, unique), unique
    may = f", to {' and '.join(purposes)}" if purposes else ""
    target = out or data.resolve().with_name(data.resolve().name + SUFFIX)
    with progress_bar("signing", lambda: contributions_in(data)) as progress:
        count = sign_corpus(data, target, signer, template, progress, length_of=length_of)
    bounds = (
        "PUBLIC, neither clipped nor noised, with no promise of privacy"
        if public
        else f"clip norm {template.clip_norm_micro / 1e6:g} at most, noise multiplier "
        f"{template.noise_multiplier_micro / 1e6:g} at least"
    )
    return Told(
        {
            "signed": count,
            "path": str(target),
            "contributor": name,
            "corpus": corpus,
            "purposes": list(template.purposes or (TRAIN,)),
            "repeated": repeated,
        },
        [
            f"signed {counted(count, 'contribution')} as {name} for {corpus}, class {admissibility_class}{may}: {bounds}, "
            f"until {utc(template.not_after)}"
            + (f"; {repeated:,} that repeat another are not in {unique}" if unique is not None else "")
            + f"\n{target}"
        ],
    )


def _lengths_by(field: str, rule: ClassRule) -> Callable[[bytes], int | None]:
    """Returns a function from a record to the public length that it signs: of several examples, that of the longest."""

    def length_of(content: bytes) -> int | None:
        try:
            record = json.loads(content)
            tokens = [one[field] for one in (record if isinstance(record, list) else [record])]
        except (ValueError, KeyError, TypeError):
            tokens = []
        if not tokens or not all(type(count) is int and count >= 0 for count in tokens):
            raise CorpusRefused(
                "CONTENT_MISSING",
                f"a record says no whole number of tokens in {field!r}, expected one in every record; write it there, or give "
                "one --public-length for all",
            )
        return rule.public_length_for(max(tokens))

    return length_of


def _delta_of_limit(max_epsilon: str | None, max_delta: str | None, rules: Policy | None) -> int | None:
    """Returns the delta at which a limit of epsilon is signed, in 1e-12; None without a limit."""
    if max_epsilon is None:
        wrong_if(max_delta is not None, "--max-delta is the delta of --max-epsilon; give both, or neither")
        return None
    if max_delta is not None:
        return to_pico(max_delta)
    if rules is None:
        raise typer.BadParameter(
            "an epsilon is a limit only at a delta: give --max-delta, such as 1e-6, or a --policy to take it from"
        )
    return int(rules.delta * PICO)


def withdraw(
    attestations: AttestationFile,
    key: inputs.KeyFile,
    record: Annotated[list[int] | None, option("Number of the contribution, from 1; repeat.", min=1)] = None,
    everything: Annotated[bool, option("Withdraw every contribution of the file.", "--all")] = False,
    reason: Annotated[str, option(_REASONS)] = "consent",
    contributor: inputs.Contributor = None,
    out: Annotated[Path, option("Where they go.", metavar="DIR", file_okay=False)] = Path("withdrawals"),
    passphrase_file: inputs.PassphraseFile = None,
) -> Told:
    """Sign withdrawals, one file per contribution, for the operator to enter with `dptrain ledger withdraw`.

    A withdrawal ends further use. It does not undo what was learned: that stays bounded by the epsilon spent.

    Example: `dptrain attest withdraw notes.jsonl.attest --key alice.key --record 3`
    """
    wrong_if(everything == bool(record), "give --record with one or more numbers, or --all")
    signer, name = inputs.load_key(key, passphrase_file, contributor)
    descriptors = [item.opened() for item in inputs.read_attestations(attestations)]
    chosen = range(1, len(descriptors) + 1) if everything else sorted(set(record or ()))
    if chosen and chosen[-1] > len(descriptors):
        raise typer.BadParameter(f"{attestations} holds {len(descriptors)} contributions, there is no number {chosen[-1]}")
    out.mkdir(parents=True, exist_ok=True)
    now, written = int(time.time()), []
    for index in chosen:
        descriptor = descriptors[index - 1]
        withdrawal = Withdrawal(descriptor.digest(), descriptor.corpus, now, reason)
        path = out / f"{withdrawal.descriptor_hash.hex()[:32]}.cose"
        signed_file.write(path, *sign_withdrawal(withdrawal, signer, signer=name))
        written.append({"descriptor_hash": withdrawal.descriptor_hash.hex(), "path": str(path)})
    said = f"signed {counted(len(written), 'withdrawal')} as {name}, reason {reason}, in {out}"
    return Told({"withdrawals": written, "signer": name, "reason": reason}, [said])


RegistryFile = Annotated[Path | None, file_option("REGISTRY", "The registry that the statement is for.")]
RegistryId = Annotated[
    str | None, option("Its id instead, 32 digits, as the owner's 'registry show' prints it.", metavar="HEX")
]


def prove(
    key: inputs.KeyFile,
    registry: RegistryFile = None,
    registry_id: RegistryId = None,
    contributor: inputs.Contributor = None,
    out: Annotated[Path | None, option("New file; default: NAME-possession.cose.", metavar="FILE")] = None,
    passphrase_file: inputs.PassphraseFile = None,
) -> Told:
    """Sign that you hold a key, for one registry.

    The owner takes it in with `dptrain registry add --statement`, or later with `dptrain registry prove`, within 30 days. Until
    then that the key is yours is the owner's word.

    Example: `dptrain attest prove --key alice.key --registry registry.cbor`
    """
    identity = _registry_id(registry, registry_id)
    signer, name = inputs.load_key(key, passphrase_file, contributor)
    statement = KeyStatement(kind=PROVE, registry_id=identity, key=signer.public_key, time=int(time.time()))
    said = f"signed that {name} holds key {_short(statement.key)}"
    return _written(out, name, "possession", statement, [statement.sign(signer)], said)


def rotate(
    key: inputs.KeyFile,
    new_key: Annotated[Path, file_option("KEY", "The key that follows, a file or .pub.")],
    registry: RegistryFile = None,
    registry_id: RegistryId = None,
    contributor: inputs.Contributor = None,
    out: Annotated[Path | None, option("New file; default: NAME-rotation.cose.", metavar="FILE")] = None,
    passphrase_file: inputs.PassphraseFile = None,
    new_passphrase_file: Annotated[Path | None, file_option("FILE", "Passphrase of the new key, in the same way.")] = None,
) -> Told:
    """Sign a change of key: the old key says which key follows, and the new one proves that you hold it.

    The owner takes it in with `dptrain registry rotate` within 30 days. Lost the old key? Then the owner revokes it and
    enrols the new one.

    Example: `dptrain attest rotate --key alice.key --new-key new/alice.key --registry registry.cbor`
    """
    identity = _registry_id(registry, registry_id)
    old, name = inputs.load_key(key, passphrase_file, contributor)
    new, _ = inputs.load_key(new_key, new_passphrase_file, name)
    statement = KeyStatement(
        kind=ROTATE, registry_id=identity, key=old.public_key, time=int(time.time()), new_key=new.public_key
    )
    said = f"signed that key {_short(statement.new_key)} of {name} follows {_short(statement.key)}"
    return _written(out, name, "rotation", statement, [statement.sign(old), statement.sign(new)], said)


def revoke(
    key: inputs.KeyFile,
    registry: RegistryFile = None,
    registry_id: RegistryId = None,
    pub: Annotated[Path | None, file_option("PUB", "Revoke this other key of yours; default: the one that signs.")] = None,
    everything: Annotated[bool, option("Revoke every key of yours.", "--all")] = False,
    at: Annotated[int | None, moment("From when on, for instance when the key was lost; default: now.")] = None,
    contributor: inputs.Contributor = None,
    out: Annotated[Path | None, option("New file; default: NAME-revocation.cose.", metavar="FILE")] = None,
    passphrase_file: inputs.PassphraseFile = None,
) -> Told:
    """Sign that a key of yours is revoked, with that key or with another valid one of yours.

    The owner takes it in with `dptrain registry revoke --statement` within 30 days; a run that is training stops using what
    the key signed at its next charge.

    Example: `dptrain attest revoke --key alice.key --registry registry.cbor`
    """
    wrong_if(everything and pub is not None, "give --pub for one key or --all for every key, not both")
    identity = _registry_id(registry, registry_id)
    signer, name = inputs.load_key(key, passphrase_file, contributor)
    now = int(time.time())
    chosen = None if everything else signer.public_key if pub is None else keys.load_public_key(pub)
    statement = KeyStatement(kind=REVOKE, registry_id=identity, key=chosen, time=now, revoked_at=now if at is None else at)
    which = "all keys" if chosen is None else f"key {_short(chosen)}"
    said = f"signed that {which} of {name} must not be used from {utc(statement.revoked_at or 0)} on"
    return _written(out, name, "revocation", statement, [statement.sign(signer)], said)


def _registry_id(registry: Path | None, text: str | None) -> bytes:
    if (registry is None) == (text is None):
        raise typer.BadParameter("say which registry it is for: --registry with the file, or --registry-id with its id")
    if registry is not None:
        # Unverified on purpose: a wrong id makes a statement that nobody can use.
        return peek(registry).registry_id
    return inputs.octets(text or "", f"{text!r} is not a registry id; it has 32 hexadecimal digits", size=16)


def _written(out: Path | None, name: str, what: str, statement: KeyStatement, messages: list[bytes], said: str) -> Told:
    target = out or Path(f"{name.replace('/', '-')}-{what}.cose")
    inputs.refuse_to_overwrite(target)
    write_statement(target, statement, *messages)
    told = pick(statement, " ".join(statement.__slots__)) | {"contributor": name, "path": str(target)}
    return Told(told, [f"{said}; send the owner {target}"])


def _short(raw: bytes | None) -> str:
    return keys.key_id(raw or b"").hex()
