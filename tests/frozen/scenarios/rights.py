"""`dptrain rights`: what a client may be answered from."""

from pathlib import Path

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import rules

_SIGN = "rights sign --key owner.key --audience house/gate"
_VERIFY = "rights verify client.rights --key owner.pub"


def _cut(directory: Path) -> None:
    (directory / "cut.rights").write_bytes((directory / "client.rights").read_bytes()[:-1])


RIGHTS = Scenario(
    "rights",
    rules,
    [
        Case(
            "sign",
            f"{_SIGN} --holder client --allow sensitive=2.5 --allow open --generation chat --generation a --told --days 7",
            keep={"serial": "serial"},
        ),
        Case(
            "sign: all that can be weakened, from a day on",
            f"{_SIGN} --holder lab/7 --withdrawn --untied --told --code --not-before +1d --granter office",
        ),
        Case("sign: the file exists", f"{_SIGN} --holder client", code=2),
        Case("sign: a class twice", f"{_SIGN} --holder other --allow open=1 --allow open", code=2),
        Case("sign: too long", f"{_SIGN} --holder other --days 91", code=2),
        Case("sign: a negative epsilon", f"{_SIGN} --holder other --allow open=-1", code=1),
        Case("sign: no number", f"{_SIGN} --holder other --allow open=much", code=1),
        Case("sign: no name of a client", f"{_SIGN} --holder 'Client 7'", code=1),
        Case("show", "rights show client.rights"),
        Case("show: a file without its end", "rights show cut.rights", code=1, before=_cut),
        Case("show: no file", "rights show nowhere.rights", code=2),
        Case("verify", f"{_VERIFY} --audience house/gate --holder client"),
        Case("verify: another gate", f"{_VERIFY} --audience house/other", code=1),
        Case("verify: another client", f"{_VERIFY} --audience house/gate --holder other", code=1),
        Case("verify: another key", "rights verify client.rights --key alice.pub --audience house/gate", code=1),
        Case("verify: not yet", f"{_VERIFY} --audience house/gate --at -1h", code=1),
        Case("verify: expired", f"{_VERIFY} --audience house/gate --at +7d", code=1),
        Case("verify: revoked", f"{_VERIFY} --audience house/gate --revoked {{serial}}", code=1),
        Case("verify: no serial", f"{_VERIFY} --audience house/gate --revoked 00", code=2),
    ],
)
