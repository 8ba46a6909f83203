"""`tandem league`: who beats whom, by versions, from the scores of seats."""

import json
from typing import Annotated

import typer
from rich.markup import escape

from shared.documents import Record
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.store import Store
from tandem.commands.connect import AsJson, Connection, RunName, console, table, with_store
from tandem.evaluation.league import By, League, elo, league_of, ranked

MAX_COLUMNS = 12  # of the pay-off table

EXAMPLES = """Examples:

`tandem league selfplay`  every version that played, rated, and who beats whom

`tandem league selfplay --every 10`  versions 40 to 49 as one player

`tandem league selfplay --by actor --split eval`  by the actors' names, in held-out tasks alone
"""


def league(
    run: RunName,
    by: Annotated[
        By, typer.Option("--by", help="What is a player: a policy's version, or an actor's name.")
    ] = "version",
    every: Annotated[int, typer.Option("--every", min=1, help="Versions from one player to the next.")] = 1,
    split: Annotated[str | None, typer.Option("--split", help="Only episodes of this split, such as eval.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The last episodes of each split that are read.")] = 5000,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Pay-off by versions, and Elo ratings, of the seats' own scores (docs/bring/actors.md).

    Each pair of seats of an episode with scores of their own is a game: the higher score wins. Ratings are those by which
    all results are most likely, so the order of games does not matter. At most `--limit` episodes of each split are read, the
    last ones.
    """

    async def read(store: Store) -> list[Record]:
        splits = [TRAIN_SPLIT, EVAL_SPLIT] if split is None else [split]
        return [record for name in splits for record in await store.questions.seated_records(name, limit)]

    standings = league_of(with_store(db_connection_string, run, read, read_only=True), by, every)
    if as_json:
        typer.echo(json.dumps({"run": run, "by": by, "every": every, **standings.to_json()}, ensure_ascii=False))
        return
    _print(run, standings)


def _print(run: str, standings: League) -> None:
    out = console()
    if not standings.games:
        out.print(
            f"no two players met in the last episodes of run {run} with seats: {standings.episodes} read, "
            f"{standings.unscored} of them without scores of two seats (a scorer gives them: Score(value, actors={{…}}))",
            markup=False,
        )
        return
    ratings = elo(standings.games)
    rows = table("player", "Elo #", "games #", "won #", "drawn #", "lost #", title=f"league of run {escape(run)}")
    order = ranked(ratings)
    for player in order:
        games = standings.total(player)
        lost = games.played - games.won - games.drawn
        cells = (f"{ratings[player]:.0f}", games.played, games.won, games.drawn, lost)
        rows.add_row(escape(player), *map(str, cells))
    out.print(rows)
    shown = order[:MAX_COLUMNS]
    title = "points per game of the row against the column" + (
        "" if len(shown) == len(order) else f", the best {len(shown)}"
    )
    pay_off = table("", *(f"{escape(player)} #" for player in shown), title=title)
    for player in shown:
        met = (standings.games[player].get(other) for other in shown)
        pay_off.add_row(escape(player), *("" if one is None else f"{one.rate:.2f} ({one.played})" for one in met))
    out.print(pay_off)
    if standings.unscored:
        out.print(f"{standings.unscored} of {standings.episodes} episodes have no scores of two seats")
