"""The HTTP side of our engine programs: SGLang's routes, forms and refusals, over any engine that fits `served.ServedEngine`.

server ─ protocol ─▶ engine (`sampler.engine.local`, `sampler.engine.vllm`) ─▶ answers
"""
