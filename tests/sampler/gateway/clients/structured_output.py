"""A form of the answer, demanded through each vendor's SDK and three packages' own ways: the first argument says which. Posts
the score."""

import asyncio
import json
import os
import sys
import urllib.request

from pydantic import BaseModel

MODEL = os.environ["TANDEM_MODEL"]
QUESTION = sys.stdin.read()


class Total(BaseModel):
    total: int


def chat_json_schema() -> Total | None:
    from openai import OpenAI

    messages = [{"role": "user", "content": QUESTION}]
    reply = OpenAI().chat.completions.parse(model=MODEL, messages=messages, response_format=Total)
    return reply.choices[0].message.parsed


def chat_json_object() -> Total:
    from openai import OpenAI

    messages = [{"role": "user", "content": f"{QUESTION} Answer in JSON."}]
    reply = OpenAI().chat.completions.create(model=MODEL, messages=messages, response_format={"type": "json_object"})
    return Total.model_validate_json(reply.choices[0].message.content or "")


def responses_text_format() -> Total | None:
    from openai import OpenAI

    return OpenAI().responses.parse(model=MODEL, input=QUESTION, text_format=Total).output_parsed


def anthropic_output_config() -> Total:
    from anthropic import Anthropic

    form = {"type": "json_schema", "schema": Total.model_json_schema()}
    reply = Anthropic().messages.create(
        model=MODEL, max_tokens=200, messages=[{"role": "user", "content": QUESTION}], output_config={"format": form}
    )
    return Total.model_validate_json(reply.content[0].text)


def anthropic_output_format() -> Total | None:
    from anthropic import Anthropic

    messages = [{"role": "user", "content": QUESTION}]
    return Anthropic().messages.parse(model=MODEL, max_tokens=200, messages=messages, output_format=Total).parsed_output


def google_json_schema() -> Total:
    from google import genai

    config = {"response_mime_type": "application/json", "response_json_schema": Total.model_json_schema()}
    client = genai.Client()  # which closes when it is dropped
    reply = client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    return Total.model_validate_json(reply.text)


def google_schema() -> Total:
    from google import genai

    config = {"response_mime_type": "application/json", "response_schema": Total}
    client = genai.Client()
    return client.models.generate_content(model=MODEL, contents=QUESTION, config=config).parsed


def openai_agents() -> Total:
    from agents import Agent, Runner, set_tracing_disabled

    set_tracing_disabled(True)
    agent = Agent(name="adder", instructions="You add.", output_type=Total, model=MODEL)
    return Runner.run_sync(agent, QUESTION).final_output


def pydantic_ai() -> Total:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel

    agent = Agent(OpenAIChatModel(MODEL), output_type=NativeOutput(Total))
    return asyncio.run(agent.run(QUESTION)).output


def instructor_tools() -> Total:
    return _instructor("TOOLS")


def instructor_json_schema() -> Total:
    return _instructor("JSON_SCHEMA")


def _instructor(mode: str) -> Total:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(), mode=instructor.Mode[mode])
    messages = [{"role": "user", "content": QUESTION}]
    return client.chat.completions.create(model=MODEL, messages=messages, response_model=Total)


found = globals()[sys.argv[1]]()
request = urllib.request.Request(
    os.environ["TANDEM_SCORE_URL"],
    data=json.dumps({"score": float(found is not None and found.total == 7)}).encode(),
    headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
)
urllib.request.urlopen(request, timeout=60).close()
