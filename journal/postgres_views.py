"""The views of a journal in PostgreSQL: the same words and columns as in the SQLite file. Times are UTC.

``happened`` is what they are made of: each event with its type, and as JSON. PostgreSQL's JSON knows no zero character,
so there it is shown as the sign for what can't be shown.
"""

from __future__ import annotations

from hashlib import sha256


def _time(expression: str) -> str:
    return f"to_char(to_timestamp({expression}) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')"


def _text(name: str, source: str = "e") -> str:
    *path, last = name.split(".")
    return source + ".event" + "".join(f"->'{part}'" for part in path) + f"->>'{last}'"


def _whole(name: str, source: str = "e") -> str:
    return f"({_text(name, source)})::bigint"


def _real(name: str, source: str = "e") -> str:
    return f"({_text(name, source)})::float8"


def _is(tag: str, source: str = "e") -> str:
    """Of one kind of event, whatever its version."""
    return f"{source}.type LIKE '{tag}/%'"


def _moment(name: str) -> str:
    return f"{_text(f'{name}.env')} || '@' || ({_text(f'{name}.generation')})"


VIEWS = {
    "happened": r"""
SELECT position, stream, version, substring(event FROM '^\{"type":"([^"]*)"') AS type,
  replace(event, '\u0000', '\ufffd')::json AS event
FROM {s}.events""",
    "log": f"""
SELECT e.position, {_time(_real("at"))} AS time, e.stream, e.version, e.type, e.event
FROM {{s}}.happened e ORDER BY e.position""",
    "generations": f"""
SELECT {_text("env")} AS environment, {_whole("generation")} AS generation, {_whole("epoch")} AS epoch,
  {_text("op")} AS operation, {_moment("source")} AS source, {_time(_real("at"))} AS published,
  {_whole("actions")} AS actions, {_text("lost_actions")} AS lost_actions,
  (SELECT string_agg(k, ', ') FROM json_object_keys(e.event->'manifest') k) AS components,
  {_text("timings_ms")} AS timings_ms, e.position
FROM {{s}}.happened e WHERE {_is("generation.published")} ORDER BY e.position""",
    "components": f"""
SELECT {_text("env")} AS environment, {_whole("generation")} AS generation, c.key AS resource,
  c.value->'sealed'->>'adapter' AS adapter, c.value->'sealed'->>'version' AS version,
  c.value->>'durability' AS durability, c.value->>'depends_on' AS depends_on, e.position
FROM {{s}}.happened e, json_each(e.event->'manifest') c
WHERE {_is("generation.published")} ORDER BY e.position, c.key""",
    "environments": f"""
WITH last AS (
    SELECT DISTINCT ON (e.stream) e.stream, {_whole("generation")} AS generation, {_whole("epoch")} AS epoch,
      {_whole("actions")} AS actions
    FROM {{s}}.happened e WHERE {_is("generation.published")} ORDER BY e.stream, e.position DESC),
  news AS (
    SELECT DISTINCT ON (e.stream) e.stream, e.type, {_real("at")} AS at FROM {{s}}.happened e
    WHERE e.type LIKE 'environment.%' AND NOT {_is("environment.forked")} OR e.type LIKE 'transition.%'
      OR {_is("generation.published")} ORDER BY e.stream, e.position DESC)
SELECT {_text("env")} AS environment,
  CASE
    WHEN news.type LIKE 'environment.retired/%' THEN 'retired'
    WHEN news.type LIKE 'environment.parked/%' OR news.type LIKE 'environment.imported/%' THEN 'parked'
    WHEN news.type LIKE 'transition.begun/%' OR news.type LIKE 'transition.drained/%' THEN 'in transition'
    WHEN last.generation IS NULL THEN 'never published'
    ELSE 'serving' END AS state,
  last.generation, last.epoch,
  greatest(last.actions, coalesce((SELECT max({_whole("number", "a")}) FROM {{s}}.happened a
    WHERE a.stream = 'act/' || ({_text("env")}) AND {_is("action.begun", "a")}), 0)) AS actions,
  {_text("how")} AS how, {_moment("parent")} AS parent, {_moment("origin")} AS origin,
  {_text("contract")} AS contract, {_time(_real("at"))} AS created, {_time("news.at")} AS last_change, e.position
FROM {{s}}.happened e LEFT JOIN last ON last.stream = e.stream LEFT JOIN news ON news.stream = e.stream
WHERE {_is("environment.created")} ORDER BY e.position""",
    "transitions": f"""
WITH ends AS (
  SELECT DISTINCT ON (e.stream, {_text("transition")})
    e.position, e.stream, e.type, {_text("transition")} AS transition, {_real("at")} AS at, e.event
  FROM {{s}}.happened e
  WHERE {_is("generation.published")} OR {_is("transition.aborted")} OR {_is("environment.imported")}
  ORDER BY e.stream, {_text("transition")}, e.position DESC)
SELECT {_text("env")} AS environment, {_text("op")} AS operation, {_text("transition")} AS transition,
  {_whole("base")} AS base, {_moment("source")} AS source, {_time(_real("at"))} AS begun,
  CASE WHEN ends.position IS NULL THEN 'in doubt' WHEN {_is("transition.aborted", "ends")} THEN 'aborted'
    ELSE 'published' END AS result,
  {_whole("generation", "ends")} AS generation, {_text("component", "ends")} AS failed_component,
  {_text("code", "ends")} AS code, {_text("reason", "ends")} AS reason,
  round(((ends.at - {_real("at")}) * 1000)::numeric, 1)::float8 AS took_ms, e.position
FROM {{s}}.happened e LEFT JOIN ends ON ends.stream = e.stream AND ends.transition = {_text("transition")}
WHERE {_is("transition.begun")} ORDER BY e.position""",
    "actions": f"""
WITH ends AS (
  SELECT e.*, {_whole("number")} AS number, {_whole("lease")} AS lease, {_whole("activation")} AS activation
  FROM {{s}}.happened e WHERE {_is("action.ended")})
SELECT {_text("env")} AS environment, {_whole("number")} AS number, {_whole("generation")} AS generation,
  {_text("action.type")} AS kind, {_text("action")} AS action, {_time(_real("at"))} AS begun,
  coalesce({_text("outcome", "ends")}, 'not ended') AS outcome, {_text("error", "ends")} AS error,
  {_real("elapsed_ms", "ends")} AS elapsed_ms, {_text("observation.url", "ends")} AS url,
  {_text("observation.title", "ends")} AS title, {_text("observation.digest", "ends")} AS observation,
  {_text("observation.screenshot", "ends")} AS screenshot, e.position
FROM {{s}}.happened e LEFT JOIN ends ON ends.stream = e.stream AND ends.number = {_whole("number")}
  AND ends.lease = {_whole("lease")} AND ends.activation = {_whole("activation")}
WHERE {_is("action.begun")} ORDER BY e.position""",
    "inputs": f"""
SELECT {_text("env")} AS environment, {_whole("after_action")} AS after_action, {_time(_real("at"))} AS time,
  {_whole("generation")} AS generation, {_text("method")} AS method, {_text("url")} AS url,
  {_whole("status")} AS status, {_text("body")} AS body, e.position
FROM {{s}}.happened e WHERE {_is("input.recorded")} ORDER BY e.position""",
    "refusals": f"""
SELECT {_text("env")} AS environment, {_time(_real("at"))} AS time, {_whole("status")} AS status,
  {_text("code")} AS code, {_text("method")} AS method, {_text("url")} AS url, {_text("detail")} AS detail,
  {_whole("epoch")} AS epoch, {_whole("activation")} AS activation, e.position
FROM {{s}}.happened e WHERE {_is("request.refused")} ORDER BY e.position""",
    "evaluations": f"""
SELECT {_text("env")} AS environment, {_text("name")} AS name, {_real("score")} AS score,
  {_whole("generation")} AS generation, {_whole("after_action")} AS after_action, {_time(_real("at"))} AS time,
  {_text("detail")} AS detail, e.position
FROM {{s}}.happened e WHERE {_is("evaluation.recorded")} ORDER BY e.position""",
}
"""Name and query of every view; each uses only what stands before it."""


def views_digest() -> str:
    """What the views of this version are known by."""
    return sha256("\n".join(f"{name}: {query}" for name, query in VIEWS.items()).encode()).hexdigest()
