"""Runs every fenced block of every page, top to bottom, in an empty folder: `pytest tests/docs/test_pages.py -k PAGE`.

How a block is run follows from its language:

| language | what is done |
|---|---|
| `sh` | run by `bash -euo pipefail`; `dptrain` and `python` are on the path; folder and exported variables stay |
| `python`, `py` | run in the namespace that the page's earlier blocks and worlds have filled |
| `toml` | a policy, a run file or a project file; a template has what a fragment lacks. A key twice is two settings |
| `json`, `jsonl`, `csv`, `hex` | parsed |
| `cddl` | its rules stand in docs/attestation.cddl or docs/ledger.cddl, word for word |
| `diff` | both sides are parsed (Python, TOML or commands); Python is run on both, the old one first, on names of its own |
| `text` | what the block before it prints, see `tests.docs.shown` |

A comment directly above a fence says what the page alone does not. Several go in several lines, or one behind the other:

    <!-- world: clinic -->              makes files and names first, see `tests.docs.worlds`; several names with commas
    <!-- file: train.py -->             the block is a file of the reader: it is written, and a later block has to name it
    <!-- exit code: 1 -->               the last command refuses (so does a last line `# exit code 1`)
    <!-- alone -->                      Python that knows nothing of other blocks
    <!-- not run: needs a network -->   is not run, for one of the reasons in `tests.docs.registered`

Pages whose blocks other tests run stand in `tests.docs.registered`, by language. A page that takes more than ten
seconds stands in `SLOW` there. `python -m tests.docs PAGE` runs one page by itself and keeps its folder.
"""
