"""`dptrain rights`: grant a client what it may be answered from, and say what was granted."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attest import keys
from attest.files import atomic_write, read_limited
from attest.fixed_point import MICRO, to_micro
from attest.schema.plain import utc
from dptrain.cli.inputs import KeyFile, PassphraseFile, load_key, octets, refuse_to_overwrite
from dptrain.cli.options import file_argument, file_option, moment, option, wrong_if
from dptrain.cli.output import number, table
from dptrain.cli.results import Shown, Told, pick

if TYPE_CHECKING:
    # Loaded in the functions that use it: with it comes all that checks a release.
    from ledger.serving import RightsEnvelope

_DAY = 86400

RightsFile = Annotated[Path, file_argument("RIGHTS", "Rights, as sign wrote them.")]


def sign(
    key: KeyFile,
    audience: Annotated[str, option("Name of the gate that they are for, and no other.")],
    holder: Annotated[str, option("Name of the client that they are for, as the service knows it.")],
    allow: Annotated[
        list[str] | None,
        option("Class that may have had influence, and its largest epsilon; any without one; repeat.", metavar="CLASS=EPSILON"),
    ] = None,
    generation: Annotated[
        list[str] | None, option("Generation class of the gate that may be asked; repeat. Default: none.", metavar="CLASS")
    ] = None,
    withdrawn: Annotated[
        bool, option("Allow a class of which a contribution was withdrawn since the release.", "--withdrawn")
    ] = False,
    untied: Annotated[bool, option("Allow weights that are not those the run committed to.", "--untied")] = False,
    told: Annotated[bool, option("Allow a release whose bounds are its operator's word (TOLD).", "--told")] = False,
    code: Annotated[bool, option("Allow files beside the weights that can carry code.", "--code")] = False,
    not_before: Annotated[int | None, moment("First moment in which they hold; default: now.")] = None,
    days: Annotated[int, option("Days for which they hold, at most 90.", metavar="N", min=1, max=90)] = 30,
    granter: Annotated[str | None, option("Who signs; default: the name in the .pub file beside the key.")] = None,
    out: Annotated[Path | None, option("New file; default: HOLDER.rights.", metavar="FILE")] = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Sign what one client of one gate may be answered from, for some days.

    A class that no `--allow` names may have had no influence at all on what answers. Epsilons are rounded down to six decimals.
    What can be weakened is off unless you say so. Keep the serial that is printed: by it the service revokes the rights.

    As whoever decides what clients may be answered from; the service that runs the gate pins your .pub file. Hand the rights
    to the client, who sends them with every query.

    Example: `dptrain rights sign --key office.key --audience house --holder client-7 --allow open=4 --generation chat --told`
    """
    from ledger.serving import RightsEnvelope, sign_rights

    classes = dict(map(_allowed, allow or ()))
    wrong_if(len(classes) < len(allow or ()), "a class is named by two --allow; give one of them")
    signer, name = load_key(key, passphrase_file, granter, "--granter")
    begins = int(time.time()) if not_before is None else not_before
    envelope = RightsEnvelope.of(
        classes,
        audience=audience,
        holder=holder,
        not_before=begins,
        expires=begins + days * _DAY,
        generation=generation or (),
        withdrawn=withdrawn,
        untied=untied,
        told=told,
        code=code,
    )
    target = out or Path(f"{holder.replace('/', '-')}.rights")
    refuse_to_overwrite(target)
    atomic_write(target, sign_rights(envelope, signer, granter=name))
    told_json = _json(envelope) | {"granter": name, "key_id": keys.key_id(signer.public_key).hex(), "path": str(target)}
    return Told(told_json, [*_text(envelope), f"wrote {target}, signed as {name}; hand it to {holder}"])


def show(rights: RightsFile) -> Told:
    """Show what rights say, and who they say signed them; nothing is verified.

    Example: `dptrain rights show client-7.rights`
    """
    from ledger.serving.envelope import peek_rights

    envelope, headers = peek_rights(_read(rights))
    told = _json(envelope) | {"granter": headers.issuer, "key_id": headers.key_id.hex(), "verified": False}
    who = f"says that {headers.issuer} signed it, with key {headers.key_id.hex()}: not verified, see dptrain rights verify"
    return Told(told, [*_text(envelope), who])


def verify(
    rights: RightsFile,
    key: Annotated[list[Path], file_option("PUB", "Public key of who may grant rights; repeat.", "--key")],
    audience: Annotated[str, option("Name of the gate that they must be for.")],
    holder: Annotated[str | None, option("Client that they must be for; default: anybody.")] = None,
    revoked: Annotated[list[str] | None, option("Serial that holds no more; repeat.", metavar="HEX")] = None,
    at: Annotated[int | None, moment("When they must hold; default: now.")] = None,
) -> Told:
    """Verify rights as a gate does: signature, gate, client, time. Exit code 1 if they do not hold.

    Whether a release has anything that they allow, the gate says.

    Example: `dptrain rights verify client-7.rights --key office.pub --audience house`
    """
    from ledger.serving import open_rights

    serials = [octets(text, f"{text!r} is not a serial; it has 32 hexadecimal digits", size=16) for text in revoked or ()]
    pinned = [keys.load_public_key(path) for path in key]
    now = int(time.time()) if at is None else at
    granted = open_rights(_read(rights), pinned, audience, now, holder=holder, revoked=serials)
    told = _json(granted.envelope) | {"granter": granted.granter, "key_id": granted.key_id.hex(), "verified": True, "at": now}
    holds = f"holds at {utc(now)}: signed by {granted.granter}, with key {granted.key_id.hex()}"
    return Told(told, [*_text(granted.envelope), holds])


def _allowed(text: str) -> tuple[str, int | None]:
    """Reads a class, and its largest epsilon in 1e-6 where one is named."""
    name, stated, epsilon = text.partition("=")
    return name, to_micro(epsilon, rounding="down") if stated else None


def _read(path: Path) -> bytes:
    from ledger.serving.envelope import MAX_ENVELOPE

    return read_limited(path, MAX_ENVELOPE, "rights envelope")


def _json(envelope: "RightsEnvelope") -> dict[str, Any]:
    named = pick(envelope, "audience holder serial not_before expires generation withdrawn untied told code")
    classes = {one.name: None if one.epsilon_micro is None else one.epsilon_micro / MICRO for one in envelope.classes}
    return named | {"classes": classes}


def _text(envelope: "RightsEnvelope") -> Iterator[Shown]:
    held = f"from {utc(envelope.not_before)} up to {utc(envelope.expires)}"
    yield f"rights of {envelope.holder} at the gate {envelope.audience}, {held}; serial {envelope.serial.hex()}"
    yield f"may ask: {', '.join(envelope.generation) or 'nothing'}"
    if envelope.classes:
        rows = table("class that may have had influence", "largest epsilon")
        for one in envelope.classes:
            rows.add_row(one.name, "any" if one.epsilon_micro is None else number(one.epsilon_micro / MICRO, 12))
        yield rows
    else:
        yield "no class may have had influence"
    weaker = {
        "withdrawn": "classes of which a contribution was withdrawn since the release",
        "untied": "weights that are not those the run committed to",
        "told": "a release whose bounds are its operator's word (TOLD)",
        "code": "files beside the weights that can carry code",
    }
    yield from (f"also allowed: {sentence}" for name, sentence in weaker.items() if getattr(envelope, name))
