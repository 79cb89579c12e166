"""`dptrain attest`: what contributors do."""

from pathlib import Path

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import clinic

_NOTES = "corpus/notes.jsonl.attest"
_SIGN = "attest sign mine.jsonl --key alice.key --class sensitive"


def _one_note(directory: Path) -> None:
    (directory / "mine.jsonl").write_text('{"text": "mine"}\n')
    (directory / "letter.json").write_text('{"text": "a letter"}\n')


def _folder(directory: Path) -> None:
    (directory / "letters").mkdir()
    for number in (1, 2):
        (directory / "letters" / f"{number}.json").write_text(f'{{"text": "letter {number}"}}\n')


def _changed_note(directory: Path) -> None:
    notes = directory / "corpus" / "notes.jsonl"
    notes.write_text(notes.read_text().replace("note 2", "note two"))


def _passphrase(directory: Path) -> None:
    (directory / "secret").write_text("open\n")


ATTEST = Scenario(
    "attest",
    clinic,
    [
        Case("keygen", "attest keygen dora"),
        Case("keygen: in the format of OpenSSH", "attest keygen emma --format openssh --dir .", before=_passphrase),
        Case("keygen: from a key that exists", "attest keygen dora-too --from dora.key"),
        Case("keygen: with a passphrase", "attest keygen fred --passphrase-file secret"),
        Case("keygen: the files exist", "attest keygen dora", code=2),
        Case("keygen: a name with a blank", "attest keygen 'two words'", code=1),
        Case("sign: bounds of a policy", f"{_SIGN} --policy policy.cose --owner-key owner.pub", before=_one_note),
        Case(
            "sign: bounds of one's own, with every limit",
            f"{_SIGN} --corpus clinic-notes-2026 --clip-norm 0.3 --noise-multiplier 2 "
            "--data-class letters --days 30 --max-occurrences 9 --max-examples 2 --max-epsilon 3 --max-delta 1e-6 "
            "--principal ward-7 --out limits.attest",
        ),
        Case("sign: a folder", "attest sign letters --key alice.key --class sensitive --policy policy.toml", before=_folder),
        Case("sign: one file", "attest sign letter.json --key alice.key --class sensitive --policy policy.toml"),
        Case(
            "sign: public data",
            "attest sign letter.json --key alice.key --class open --public --corpus clinic-notes-2026 --out public.attest",
        ),
        Case(
            "sign: a class that the policy lacks",
            "attest sign mine.jsonl --key alice.key --class secret --policy policy.toml",
            code=1,
        ),
        Case(
            "sign: to generate and train",
            f"{_SIGN} --corpus clinic-notes-2026 --clip-norm 0.3 --noise-multiplier 2 --purpose train --purpose generate"
            " --out both.attest",
        ),
        Case("sign: a purpose that the class lacks", f"{_SIGN} --policy policy.toml --purpose generate", code=2),
        Case("sign: neither policy nor bounds", _SIGN, code=2),
        Case("sign: no key", "attest sign mine.jsonl --class sensitive", code=2),
        Case("verify", "attest verify corpus/notes.jsonl --pub alice.pub"),
        Case("verify: at another time", "attest verify corpus/notes.jsonl --pub alice.pub --at +366d --limit 2", code=1),
        Case("verify: another key", "attest verify corpus/notes.jsonl --pub bob.pub", code=1),
        Case("verify: a note was changed", "attest verify corpus/notes.jsonl --pub alice.pub", code=1, before=_changed_note),
        Case("verify: no data", "attest verify nowhere.jsonl --pub alice.pub", code=2),
        Case("show", f"attest show {_NOTES} --limit 2"),
        Case("show: every limit", "attest show limits.attest"),
        Case("show: to generate and train", "attest show both.attest"),
        Case("show: one record", f"attest show {_NOTES} --record 1"),
        Case("show: one record, with its key", f"attest show {_NOTES} --record 1 --pub alice.pub"),
        Case(
            "show: one record, under a policy",
            f"attest show {_NOTES} --record 1 --policy policy.cose --registry registry.cbor --owner-key owner.pub",
        ),
        Case("show: later than it is valid", f"attest show {_NOTES} --record 1 --pub alice.pub --at +400d"),
        Case("show: a key of another", f"attest show {_NOTES} --record 1 --pub bob.pub", code=1),
        Case("show: what is no attestation", "attest show policy.toml", code=1),
        Case("show: a record that is not there", f"attest show {_NOTES} --record 6", code=2),
        Case("anchor", "attest anchor letter.json --key alice.key"),
        Case("anchor: with the nonce", "attest anchor letter.json --key alice.key --with-nonce --out nonce.anchor"),
        Case("anchor: another key", "attest anchor letter.json --key bob.key --out other.anchor", code=1),
        Case("anchor: no content", "attest anchor nowhere.json --key alice.key", code=2),
        Case("prove", "attest prove --key alice.key --registry registry.cbor"),
        Case("prove: the file exists", "attest prove --key alice.key --registry registry.cbor", code=2),
        Case("prove: what is no registry", "attest prove --key alice.key --registry policy.toml --out other.cose", code=1),
        Case("prove: no registry", "attest prove --key alice.key --out other.cose", code=2),
        Case("rotate", "attest rotate --key alice.key --new-key dora.key --registry registry.cbor"),
        Case(
            "rotate: what is no registry",
            "attest rotate --key alice.key --new-key dora.key --registry policy.toml --out other.cose",
            code=1,
        ),
        Case("rotate: no new key", "attest rotate --key alice.key --registry registry.cbor", code=2),
        Case("revoke", "attest revoke --key alice.key --registry registry.cbor --at 2027-02-01"),
        Case("revoke: every key", "attest revoke --key alice.key --registry registry.cbor --all --out all.cose"),
        Case("revoke: what is no registry", "attest revoke --key alice.key --registry policy.toml --out other.cose", code=1),
        Case("revoke: an identifier that is too short", "attest revoke --key alice.key --registry-id 00", code=2),
        Case("withdraw", f"attest withdraw {_NOTES} --key alice.key --record 2 --record 4"),
        Case("withdraw: everything", f"attest withdraw {_NOTES} --key owner.key --all --reason error --out owners"),
        Case("withdraw: a reason in words", f"attest withdraw {_NOTES} --key alice.key --record 1 --reason 'no more'", code=1),
        Case("withdraw: neither records nor all", f"attest withdraw {_NOTES} --key alice.key", code=2),
    ],
)
