"""`dptrain ledger init`: tables for a run whose database role may write leaves and change nothing."""

from typing import Annotated

import typer

from dptrain.cli.ledger_place import checked, place_of
from dptrain.cli.output import JsonFlag, console, print_json

Url = Annotated[str, typer.Argument(metavar="URL", callback=checked, help="postgresql://OWNER@HOST/DATABASE[?schema=NAME]")]


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    app.command()(init)


def init(
    url: Url,
    writer: Annotated[str, typer.Option("--writer", metavar="ROLE", help="Role that runs write with; it exists.")],
    json: JsonFlag = False,
) -> None:
    """Make the tables of a ledger on a server, for a role that can only append.

    Connect as the role that shall own them. The run then connects as ROLE and begins the ledger. Not needed where the run's own
    role may create a schema: then the run makes the tables itself.
    """
    place = place_of(url, None)
    if place.kind != "postgresql":
        raise typer.BadParameter("a ledger in a file needs no preparation; training makes it")
    from ledger.storage.postgres import PostgresStore

    store = PostgresStore.create(place)
    try:
        store.grant(writer)
    finally:
        store.close()
    if json:
        print_json({"ledger": place.shown, "schema": place.schema, "writer": writer})
    else:
        console().print(f"made the tables of {place.shown} in schema {place.schema}; {writer} may append to them")
