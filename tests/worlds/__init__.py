"""Small worlds that tests share, each with one owner; a test that needs another one changes a copy.

| room | world |
|---|---|
| `registries` | registry files: made, continued, and signed behind the back of every check |
| `gate` | Alice, Bob and their owner; a registry, a policy, and what the gate says of an attestation |
| `commands` | commands run in this process; a clinic that is kept by them, and its finished run |
| `ledgers`, `attested_ledgers`, `retained_ledgers` | ledgers under a driver: bare, of signed admissions, summarised |
| `checkpoints` | model checkpoints without a model |
| `training`, `trainer` | a corpus on disk that a run opens, and a tiny loop over it |
| `digits` | a run file over real data |
| `postgres`, `ssh_agents` | servers that live as long as a test |
"""
