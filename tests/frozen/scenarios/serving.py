"""`dptrain serve`: what is made before a server runs, and what keeps it from running."""

from pathlib import Path

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import rules

FILE = """
tokens = "tokens.toml"
[server]
name = "gate.example"
[gate]
release = "model"
keys = ["ledger.pub"]
[classes.chat]
artifacts = ["base"]
[budget]
log = "budget.db"
key = "budget.key"
caps = { user = { epsilon = 6.0, delta = 1e-5 } }
"""


def _file(directory: Path) -> None:
    rules(directory)
    (directory / "serve.toml").write_text(FILE)
    (directory / "odd.toml").write_text(FILE + "unlimited = true\n")


SERVING = Scenario(
    "serve",
    _file,
    [
        Case("init", "serve serve.toml --init"),
        Case("init: there is a log", "serve serve.toml --init", code=1),
        Case("a token", "serve serve.toml --add-token anna --allow pub=4 --allow bar"),
        Case("a token of an operator", "serve serve.toml --add-token ops --operator"),
        Case("a token of a corpus", "serve serve.toml --add-token notes --corpus"),
        Case("a token of nobody", "serve serve.toml --add-token 'Anna B'", code=1),
        Case("a token for much", "serve serve.toml --add-token bob --allow pub=much", code=1),
        Case("export", "serve serve.toml --export spent"),
        Case("export: there is one", "serve serve.toml --export spent", code=1),
        Case("two things at once", "serve serve.toml --init --he", code=2),
        Case("an operator without a token", "serve serve.toml --operator", code=2),
        Case("no file", "serve nowhere.toml", code=2),
        Case("a key that nobody knows", "serve odd.toml --init", code=1),
        Case("no release", "serve serve.toml", code=1),
        Case("no encrypted class", "serve serve.toml --he", code=1),
    ],
)
