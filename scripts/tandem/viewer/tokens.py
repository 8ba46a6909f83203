"""The page of a rollout's tokens, one turn at a time, coloured by a figure of the documents.

A figure that no document has is not made up: the page says why it is missing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from shared.documents import DataDispatch, DBRecordData
from shared.documents.packed import unpack_floats, unpack_ints
from shared.documents.run import PolicyVersion
from shared.episodes.images import EpisodeImage, EpisodeImages, placed
from shared.episodes.state import TurnState
from shared.episodes.stored import StoredEpisode
from shared.store.views.query import Query
from shared.store.views.rollouts import logprobs_query, turn_query
from shared.store.views.steps import step_query, versions_query
from shared.tokens.merging import LossRules
from tandem.viewer.group import loss_rules
from tandem.viewer.images import known_images
from tandem.viewer.page_request import BadQuestion, NotThere, PageRequest
from tandem.viewer.rollout import episode_of, images_of
from tandem.viewer.trained_tokens import NOT_STORED, NOT_TRAINED, TrainedToken, TrainedTurn, trained_turn
from tandem.what_if.sampled import Spell, speller

MOST_SHOWN = 2_000  # tokens on one page
SHADES = 9
MASKED = 5  # the shade of a token that has a loss and was clipped or masked
LOWEST_LOGPROB = -6.0  # this and less have the strongest shade; shades grow with the square root, as most are near 0
LARGEST_DIFFERENCE = 0.5  # nats between engine and trainer; likewise
COLOURS = ("logprob", "difference", "ratio", "advantage", "version", "staleness", "mask", "step")
STEP_METRICS = ("loss/mismatch_mean_nats", "loss/ess_fraction", "loss/k3_mean", "loss/loss")


@dataclass(frozen=True, slots=True)
class Token:
    """`shade`: 0 to SHADES, of the chosen colour. `sampled`: False for a prompt's token. `trained`: by step, where stored.

    `image`: `length` tokens stand for it, placeholders with the marks between them; `id` is that of a placeholder."""

    place: int
    id: int
    text: str
    sampled: bool
    logprob: float | None
    version: int | None
    staleness: list[int]  # at each step that trained it
    trained: list[TrainedToken]
    has_loss: bool
    shade: int = 0
    image: EpisodeImage | None = None
    length: int = 1


@dataclass(frozen=True, slots=True)
class TokensView:
    record: str
    task: str
    turn: int
    turns: list[int]
    dispatch: str
    colour: str
    colours: tuple[str, ...]
    tokens: list[Token]
    first: int  # place from which on tokens are shown
    end: int  # place behind the last one that is shown
    total: int
    prompt: int  # tokens of the turn that it did not sample
    shared: int  # tokens before these, of earlier turns
    chosen: Token | None
    call: int | None  # the tool call that the turn made, if it made one
    advantage: float | None
    is_trained: bool
    why_not: str
    steps: list[int]
    step_metrics: dict[int, dict[str, float | None]]
    policy: str
    spelt: bool
    why_no_difference: str  # why the trainer's figures of the turn are missing; empty: they are there
    queries: list[Query]


async def tokens_page(request: PageRequest) -> TokensView:
    episode = await episode_of(request)
    turn = _turn(episode, request.number("turn", episode.state.turns[0].number if episode.state.turns else 0))
    colour = request.text("by", "logprob") or "logprob"
    if colour not in COLOURS:
        raise BadQuestion(f"by is {colour[:80]!r}; expected {', '.join(COLOURS)}")
    data = next((d for d in episode.data if d.policy == turn.policy), None)
    entry = next((d for d in data.dispatches if d.id == turn.dispatch.id), None) if data else None
    steps = data.trained_steps if data else []
    versions = [version for version, _ in turn.dispatch.weight_versions]
    query = versions_query(turn.policy, versions)
    published = [PolicyVersion.from_mongo(document) for document in await query.run(request.store.database)]
    computed = logprobs_query(data.id if data else "", turn.number)
    trained = trained_turn(
        await computed.run(request.store.database) if steps else [], steps, request.run.starts.get(turn.policy, [])
    )
    first = request.number("first", 0)
    prompt = unpack_ints(turn.dispatch.prompt_ids).tolist()
    advantage = turn.dispatch.advantage if entry is None else entry.advantage
    why_not = _why_not(turn, data, entry, await loss_rules(request, turn.policy))
    is_trained = not why_not
    shade = _shades(colour, versions, advantage, steps)
    spell = await speller(request.store, turn.policy)
    behind = {v.version: [v.staleness(step - 1) for step in steps] for v in published}
    images, images_queries = await known_images(request.store, images_of(episode))
    rows = _prompt(turn, prompt, spell, images)
    rows += _sampled(turn, len(prompt), spell, behind, trained, is_trained, shade)
    place = request.number("position", -1, least=-1)  # in the whole context, as documents and the page of a step count
    chosen = request.number("token", place - turn.shared if place >= turn.shared else -1, least=-1)
    shown = _from(rows, first)
    if chosen >= 0 and not any(_stands_at(token, chosen) for token in shown):
        first = chosen // MOST_SHOWN * MOST_SHOWN
        shown = _from(rows, first)
    return TokensView(
        record=episode.record.id,
        task=episode.record.task,
        turn=turn.number,
        turns=[one.number for one in episode.state.turns],
        dispatch=turn.dispatch.id,
        colour=colour,
        colours=COLOURS,
        tokens=shown,
        first=first,
        end=shown[-1].place + shown[-1].length if shown else first,
        total=rows[-1].place + rows[-1].length if rows else 0,
        prompt=len(prompt),
        shared=turn.shared,
        chosen=next((token for token in shown if _stands_at(token, chosen)), None),
        call=0 if turn.dispatch.tool_calls else None,
        advantage=advantage,
        is_trained=is_trained,
        why_not=why_not,
        steps=steps,
        step_metrics={step: await _metrics(request, turn.policy, step) for step in steps},
        policy=turn.policy,
        spelt=any(token.text for token in shown if token.image is None),
        why_no_difference="" if trained.by_step else NOT_STORED if steps else NOT_TRAINED,
        queries=[
            turn_query(turn.dispatch.id),
            query,
            computed,
            *(step_query(turn.policy, step) for step in steps),
            *images_queries,
        ],
    )


def _turn(episode: StoredEpisode, number: int) -> TurnState:
    for turn in episode.state.turns:
        if turn.number == number:
            return turn
    raise NotThere(f"{episode.record.id} has no turn {number}")


def _from(rows: list[Token], first: int) -> list[Token]:
    """`MOST_SHOWN` at most."""
    return [token for token in rows if token.place + token.length > first][:MOST_SHOWN]


def _stands_at(token: Token, place: int) -> bool:
    return token.place <= place < token.place + token.length


def _prompt(turn: TurnState, ids: list[int], spell: Spell, images: EpisodeImages) -> list[Token]:
    """One for each token; of an image one for all of them."""
    rows: list[Token] = []
    behind = 0
    for start, stop, image in [*placed(turn.dispatch.images, ids), (len(ids), len(ids), None)]:
        rows += [
            Token(k, ids[k], spell([ids[k]]), False, None, None, [], [], False)
            for k in range(behind, min(start, len(ids)))
        ]
        behind = stop
        if image is not None:
            shown = replace(images.image(image.sha256), tokens=image.count)
            text = f"image · {image.count:,} tokens"
            length = stop - start
            rows.append(Token(start, ids[start], text, False, None, None, [], [], False, image=shown, length=length))
    return rows


# 7 parameters: one turn's tokens, and what the page shows of each
def _sampled(
    turn: TurnState,
    first: int,
    spell: Spell,
    behind: dict[int, list[int]],
    trained: TrainedTurn,
    is_trained: bool,
    shade: "Shade",
) -> list[Token]:
    response = turn.dispatch.response
    if response is None:
        return []
    logprobs = unpack_floats(response.output_logprobs).tolist()
    versions = [version for version, n in turn.dispatch.weight_versions for _ in range(n)]
    shaded = []
    for k, identity in enumerate(turn.output_ids):
        version = versions[k] if k < len(versions) else None
        logprob = logprobs[k] if k < len(logprobs) else None
        token = Token(
            place=first + k,
            id=identity,
            text=spell([identity]),
            sampled=True,
            logprob=logprob,
            version=version,
            staleness=behind.get(version, []) if version is not None else [],
            trained=trained.at(turn.shared + first + k, logprob),
            has_loss=is_trained,
        )
        shaded.append(replace(token, shade=shade(token)))
    return shaded


Shade = Callable[[Token], int]


def _shades(colour: str, versions: list[int], advantage: float | None, steps: list[int]) -> Shade:
    """A function from a sampled token to its shade."""
    order = {version: n % SHADES + 1 for n, version in enumerate(sorted(set(versions)))}

    def of_version(token: Token) -> int:
        return order.get(token.version, 0) if token.version is not None else 0

    def of_mask(token: Token) -> int:
        if not token.has_loss:
            return 0
        return MASKED if token.trained and token.trained[-1].marks else SHADES

    def of_difference(token: Token) -> int:
        difference = token.trained[-1].difference if token.trained else None
        return 0 if difference is None else _grown(abs(difference) / LARGEST_DIFFERENCE)

    def of_ratio(token: Token) -> int:
        """The middle shade is 1; each of the others is a tenth more or less, and the last ones all beyond."""
        ratio = token.trained[-1].ratio if token.trained else None
        middle = (SHADES + 1) // 2
        return 0 if ratio is None else min(SHADES, max(1, middle + round(10 * (ratio - 1))))

    ways: dict[str, Shade] = {
        "logprob": lambda token: 0 if token.logprob is None else _grown(token.logprob / LOWEST_LOGPROB),
        "difference": of_difference,
        "ratio": of_ratio,
        "advantage": lambda token: 0 if not advantage else SHADES if advantage > 0 else 1,
        "version": of_version,
        "staleness": lambda token: 1 + min(SHADES - 1, max(token.staleness)) if token.staleness else 0,
        "mask": of_mask,
        "step": lambda token: SHADES if steps else 0,
    }
    return ways[colour]


def _grown(share: float) -> int:
    """Shades grow with the square root, as most figures are near 0. No number has the strongest."""
    return SHADES if math.isnan(share) else 1 + round((SHADES - 1) * math.sqrt(min(1.0, max(0.0, share))))


def _why_not(turn: TurnState, data: DBRecordData | None, entry: DataDispatch | None, rules: LossRules) -> str:
    """Why the turn's tokens have no loss; empty if they have one."""
    if data is not None and entry is not None and entry.trained:
        return rules.why_left_out(entry.advantage, [d.advantage for d in data.dispatches if d.trained])
    if data is None:
        return "the episode has no training data"
    if turn.dispatch.sampled_by is not None:
        return f"context: sampled by policy {turn.dispatch.sampled_by}"
    if turn.dispatch.response is None or turn.is_open:
        return "the request was not answered"
    return data.reason or "settlement masked it"


async def _metrics(request: PageRequest, policy: str, step: int) -> dict[str, float | None]:
    logged = await request.store.steps.metrics_of(policy, step, request.run.starts.get(policy, []))
    return {name: logged[name] for name in STEP_METRICS if name in logged}
