"""google-genai, streamed, with a loop of its own."""

import os
import sys

from google import genai
from google.genai import types


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


client = genai.Client()
model = os.environ["GEMINI_MODEL"]
question = sys.stdin.read()
tool = types.Tool(
    function_declarations=[types.FunctionDeclaration.from_callable(client=client._api_client, callable=add)]
)
contents = [types.Content(role="user", parts=[types.Part.from_text(text=question)])]
while True:
    parts = []
    for chunk in client.models.generate_content_stream(model=model, contents=contents, config={"tools": [tool]}):
        parts += chunk.candidates[0].content.parts or []
    contents.append(types.Content(role="model", parts=parts))
    calls = [part.function_call for part in parts if part.function_call]
    if not calls:
        break
    results = [types.Part.from_function_response(name=one.name, response={"result": add(**one.args)}) for one in calls]
    contents.append(types.Content(role="user", parts=results))
print("".join(part.text or "" for part in parts))
