"""Generates texts from private references behind HTTP: `POST /v1/dp/generations`.

* `sources`: task, salt, references and numbers of a generation, out of the server's file.
* `offered`: what may be asked for; who pays; and whether rows were found to be independent.
* `drawing`: the tokens of one text, in the turns of the scheduler.
"""
