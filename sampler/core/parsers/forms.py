"""How a model is told to write a tool call, for each parser: an example that the parser itself reads as a call of NAME with
{"KEY": "VALUE"}."""

from sampler.core.parsers import deepseekv3, kimi_k2, minicpm, mistral

_HERMES = '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>'
CALL_FORMS = {
    "deepseekv3": f'{deepseekv3.SECTION}{deepseekv3.OPEN}NAME{deepseekv3.SEPARATOR}{{"KEY": "VALUE"}}'
    f"{deepseekv3.CLOSE}{deepseekv3.END_SECTION}",
    "glm45": "<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>",
    "hermes": _HERMES,
    "kimi_k2": f'{kimi_k2.SECTION}{kimi_k2.OPEN}functions.NAME:0{kimi_k2.ARGUMENTS}{{"KEY": "VALUE"}}'
    f"{kimi_k2.CLOSE}{kimi_k2.END_SECTION}",
    "llama3": '{"name": "NAME", "parameters": {"KEY": "VALUE"}}',
    "minicpm": f'{minicpm.OPEN}\n```python\nNAME(KEY="VALUE")\n```\n{minicpm.CLOSE}',
    "mistral": f'{mistral.OPEN}[{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}]',
    "pythonic": '[NAME(KEY="VALUE")]',
    "qwen": _HERMES,
    "qwen25": _HERMES,
    "qwen3_coder": "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>",
}
