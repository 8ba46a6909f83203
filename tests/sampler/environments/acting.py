"""Replies that call the tools of the database and the shell, and solvers that know how each generated task is done."""

import json
import re
from typing import Any

from tests.sampler.environments.services import Service

WORD = r"(\w+)"


def call(one: Service, session: dict[str, str], *calls: tuple[str, dict[str, Any] | str]) -> dict[str, Any]:
    made = [
        {
            "id": f"c{k}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for k, (name, given) in enumerate(calls)
    ]
    reply = {"role": "assistant", "content": "", "tool_calls": made}
    answer = one.http.post("/interact", json={"messages": [reply]}, headers=session)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def sql(one: Service, session: dict[str, str], statement: str) -> str:
    (message,) = call(one, session, ("execute_sql", {"query": statement}))["messages"]
    return str(message["content"])


def commit(one: Service, session: dict[str, str], *values: object) -> dict[str, Any]:
    return call(one, session, ("commit_final_answer", {"answers": [str(value) for value in values]}))


def bash(one: Service, session: dict[str, str], script: str) -> str:
    (message,) = call(one, session, ("bash_action", {"script": script}))["messages"]
    return str(message["content"])


SQL = {
    rf"How many {WORD} have the {WORD} '{WORD}'": "SELECT count(*) FROM {0} WHERE {1} = '{2}'",
    rf"total {WORD} of {WORD} with {WORD} '{WORD}' and at least (\d+) {WORD}": "SELECT coalesce(sum({0}), 0) FROM {1} "
    "WHERE {2} = '{3}' AND {5} >= {4}",
    rf"Which {WORD} has the {WORD} entry of the highest {WORD}": "SELECT {0} FROM {1} ORDER BY {2} DESC LIMIT 1",
    rf"List each {WORD} in {WORD} that is (\d+) or more": "SELECT {0} FROM {1} WHERE {0} >= {2}",
    rf"sum of {WORD} over all {WORD} at {WORD} whose {WORD} is '{WORD}'": "SELECT coalesce(sum({0}), 0) FROM {1} "
    "JOIN {2} ON {2}.id = {1}.{2}_id WHERE {3} = '{4}'",
    rf"Which {WORD} do most {WORD} have": "SELECT {0} FROM {1} GROUP BY {0} ORDER BY count(*) DESC, {0} LIMIT 1",
    rf"Insert a row into {WORD}: id (\d+), \w+ '{WORD}', \w+ '{WORD}', \w+ (\d+), \w+ (\d+), \w+ (\d+)": "INSERT INTO {0} "
    "VALUES ({1}, '{2}', '{3}', {4}, {5}, {6})",
    rf"Raise {WORD} by (\d+) for all {WORD} of {WORD} '{WORD}'": "UPDATE {2} SET {0} = {0} + {1} WHERE {3} = '{4}'",
    rf"Delete all {WORD} at {WORD} whose {WORD} is '{WORD}', where {WORD} is less than (\d+)": "DELETE FROM {0} WHERE "
    "{4} < {5} AND {1}_id IN (SELECT id FROM {1} WHERE {2} = '{3}')",
}
_COUNTED = "awk '{print $1}' access.log | sort | uniq -c | sort -k1,1nr -k2,2V | head -1 | awk '{print $2}'"
SHELL = {
    r"How many files here and in the folders below end in \.(\w+)": "find . -name '*.{0}' | wc -l",
    r"How many lines of (\w+) are of level ERROR": "grep -c '^{0} ERROR' service.log",
    r"sum of the amounts of (\w+) in sales": "awk -F, '$1 == \"{0}\" {{s += $2}} END {{print s}}' sales.csv",
    r"folder named trash": "mkdir trash; mv *.tmp trash",
    r"Replace (\w+) by (\w+) everywhere": "sed -i s/{0}/{1}/g app.conf",
    r"to unique.txt": "sort -u words.txt > unique.txt",
    r"name of the largest file": "ls -S | head -1",
    r"Which address has the most lines": _COUNTED.replace("{", "{{").replace("}", "}}"),
    r"executed by their owner": "chmod u+x *.sh",
    r"so that it ends in \.jpg": 'for f in *.jpeg; do mv "$f" "${{f%.jpeg}}.jpg"; done',
}


def solution(question: str, known: dict[str, str]) -> str:
    """The one that fits."""
    (found,) = [how.format(*match.groups()) for asks, how in known.items() if (match := re.search(asks, question))]
    return found


def solved_sql(one: Service, kind: str, index: int) -> dict[str, Any]:
    """Played to its end as someone would who knows SQL."""
    session, step = one.start(kind, index)
    question = step["messages"][0]["content"]
    head, *rows = sql(one, session, solution(question, SQL)).splitlines()
    return commit(one, session, *([] if "rows changed" in head else rows[:-1]))


def solved_shell(one: Service, kind: str, index: int) -> dict[str, Any]:
    session, step = one.start(kind, index)
    question = step["messages"][0]["content"]
    told = bash(one, session, solution(question, SHELL))
    assert told.endswith("[exit status 0]"), told
    if "\n" not in told.strip():
        return call(one, session, ("finish_action", {"thought": "done"}))
    return call(one, session, ("answer_action", {"answer": told.splitlines()[0].strip()}))
