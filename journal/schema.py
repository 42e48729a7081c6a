"""The tables and views of a journal file, so that a person with any SQLite tool can read it.

Two tables hold everything: ``events``, and ``streams`` with each stream's head (which makes a cut-off end visible). The
views speak the words of the glossary; all they show is taken out of the events' own bytes. Times are UTC.
"""

from __future__ import annotations

import sqlite3

FORMAT = 1
"""The layout's version, in the file's ``user_version``. Views may change without a new one; tables may not."""

APPLICATION_ID = 0x5346_4A31
"""``SFJ1`` in the file's header, by which tools (``file``) can know a journal."""


def _time(expression: str) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', {expression}, 'unixepoch')"


def _field(name: str, source: str = "e") -> str:
    return f"json_extract({source}.event, '$.{name}')"


def _is(tag: str, source: str = "e") -> str:
    """Of one kind of event, whatever its version."""
    return f"{_field('type', source)} LIKE '{tag}/%'"


def _moment(name: str) -> str:
    return f"{_field(f'{name}.env')} || '@' || {_field(f'{name}.generation')}"


_ENDS = (  # an import ends with an event of its own, behind all that it publishes
    f"SELECT max(e.position) AS position, e.stream, {_field('transition')} AS transition, {_field('at')} AS at, e.event"
    f" FROM events e WHERE {_is('generation.published')} OR {_is('transition.aborted')}"
    f" OR {_is('environment.imported')} GROUP BY e.stream, {_field('transition')}"
)

VIEWS = {
    "log": f"""
SELECT e.position, {_time(_field("at"))} AS time, e.stream, e.version, {_field("type")} AS type, e.event
FROM events e ORDER BY e.position""",
    "generations": f"""
SELECT {_field("env")} AS environment, {_field("generation")} AS generation, {_field("epoch")} AS epoch,
  {_field("op")} AS operation, {_moment("source")} AS source, {_time(_field("at"))} AS published,
  {_field("actions")} AS actions, {_field("lost_actions")} AS lost_actions,
  (SELECT group_concat(key, ', ') FROM json_each(e.event, '$.manifest')) AS components,
  {_field("timings_ms")} AS timings_ms, e.position
FROM events e WHERE {_is("generation.published")} ORDER BY e.position""",
    "components": f"""
SELECT {_field("env")} AS environment, {_field("generation")} AS generation, c.key AS resource,
  json_extract(c.value, '$.sealed.adapter') AS adapter, json_extract(c.value, '$.sealed.version') AS version,
  json_extract(c.value, '$.durability') AS durability, json_extract(c.value, '$.depends_on') AS depends_on, e.position
FROM events e, json_each(e.event, '$.manifest') c WHERE {_is("generation.published")} ORDER BY e.position, c.key""",
    "environments": f"""
WITH born AS (SELECT e.* FROM events e WHERE {_is("environment.created")}),
  last AS (
    SELECT e.stream, {_field("generation")} AS generation, {_field("epoch")} AS epoch, {_field("actions")} AS actions,
      max(e.position) FROM events e WHERE {_is("generation.published")} GROUP BY e.stream),
  news AS (
    SELECT e.stream, {_field("type")} AS type, {_field("at")} AS at, max(e.position) FROM events e
    WHERE {_is("environment.%")} AND NOT {_is("environment.forked")} OR {_is("transition.%")}
      OR {_is("generation.published")} GROUP BY e.stream)
SELECT {_field("env")} AS environment,
  CASE
    WHEN news.type LIKE 'environment.retired/%' THEN 'retired'
    WHEN news.type LIKE 'environment.parked/%' OR news.type LIKE 'environment.imported/%' THEN 'parked'
    WHEN news.type LIKE 'transition.begun/%' OR news.type LIKE 'transition.drained/%' THEN 'in transition'
    WHEN last.generation IS NULL THEN 'never published'
    ELSE 'serving' END AS state,
  last.generation, last.epoch,
  max(coalesce(last.actions, 0), coalesce((SELECT max({_field("number", "a")}) FROM events a
    WHERE a.stream = 'act/' || {_field("env")} AND {_is("action.begun", "a")}), 0)) AS actions,
  {_field("how")} AS how, {_moment("parent")} AS parent, {_moment("origin")} AS origin,
  {_field("contract")} AS contract, {_time(_field("at"))} AS created, {_time("news.at")} AS last_change, e.position
FROM born e LEFT JOIN last ON last.stream = e.stream LEFT JOIN news ON news.stream = e.stream ORDER BY e.position""",
    "transitions": f"""
WITH ends AS ({_ENDS})
SELECT {_field("env")} AS environment, {_field("op")} AS operation, {_field("transition")} AS transition,
  {_field("base")} AS base, {_moment("source")} AS source, {_time(_field("at"))} AS begun,
  CASE WHEN ends.position IS NULL THEN 'in doubt' WHEN {_is("transition.aborted", "ends")} THEN 'aborted'
    ELSE 'published' END AS result,
  {_field("generation", "ends")} AS generation, {_field("component", "ends")} AS failed_component,
  {_field("code", "ends")} AS code, {_field("reason", "ends")} AS reason,
  round((ends.at - {_field("at")}) * 1000, 1) AS took_ms, e.position
FROM events e LEFT JOIN ends ON ends.stream = e.stream AND ends.transition = {_field("transition")}
WHERE {_is("transition.begun")} ORDER BY e.position""",
    "actions": f"""
WITH ends AS (
  SELECT e.*, {_field("number")} AS number, {_field("lease")} AS lease, {_field("activation")} AS activation
  FROM events e WHERE {_is("action.ended")})
SELECT {_field("env")} AS environment, {_field("number")} AS number, {_field("generation")} AS generation,
  {_field("action.type")} AS kind, {_field("action")} AS action, {_time(_field("at"))} AS begun,
  coalesce({_field("outcome", "ends")}, 'not ended') AS outcome, {_field("error", "ends")} AS error,
  {_field("elapsed_ms", "ends")} AS elapsed_ms, {_field("observation.url", "ends")} AS url,
  {_field("observation.title", "ends")} AS title, {_field("observation.digest", "ends")} AS observation,
  {_field("observation.screenshot", "ends")} AS screenshot, e.position
FROM events e LEFT JOIN ends ON ends.stream = e.stream AND ends.number = {_field("number")}
  AND ends.lease = {_field("lease")} AND ends.activation = {_field("activation")}
WHERE {_is("action.begun")} ORDER BY e.position""",
    "inputs": f"""
SELECT {_field("env")} AS environment, {_field("after_action")} AS after_action, {_time(_field("at"))} AS time,
  {_field("generation")} AS generation, {_field("method")} AS method, {_field("url")} AS url,
  {_field("status")} AS status, {_field("body")} AS body, e.position
FROM events e WHERE {_is("input.recorded")} ORDER BY e.position""",
    "refusals": f"""
SELECT {_field("env")} AS environment, {_time(_field("at"))} AS time, {_field("status")} AS status,
  {_field("code")} AS code, {_field("method")} AS method, {_field("url")} AS url, {_field("detail")} AS detail,
  {_field("epoch")} AS epoch, {_field("activation")} AS activation, e.position
FROM events e WHERE {_is("request.refused")} ORDER BY e.position""",
    "evaluations": f"""
SELECT {_field("env")} AS environment, {_field("name")} AS name, {_field("score")} AS score,
  {_field("generation")} AS generation, {_field("after_action")} AS after_action, {_time(_field("at"))} AS time,
  {_field("detail")} AS detail, e.position
FROM events e WHERE {_is("evaluation.recorded")} ORDER BY e.position""",
}
"""Name and query of every view."""


def create_schema(connection: sqlite3.Connection) -> None:
    """Make what is missing, and bring the views up to date. Repeatable: a crash in between does no harm."""
    import sqlite_utils  # only writers need it, and it takes as long to load as the rest of a reading command

    database = sqlite_utils.Database(connection, execute_plugins=False)
    events, streams = database.table("events"), database.table("streams")
    if not events.exists():
        columns = {"position": int, "stream": str, "version": int, "event": str, "hash": str}
        events.create(columns, pk="position", not_null=set(columns))
    if not streams.exists():
        streams.create({"stream": str, "version": int, "hash": str}, pk="stream", not_null={"version", "hash"})
    events.create_index(["stream", "version"], unique=True, if_not_exists=True)
    for name, query in VIEWS.items():
        database.create_view(name, query.strip(), replace=True)
    for name, value in (("application_id", APPLICATION_ID), ("user_version", FORMAT)):
        if connection.execute(f"PRAGMA {name}").fetchone() != (value,):
            connection.execute(f"PRAGMA {name} = {value}")
