"""vLLM behind the engine contract: unmodified vLLM, started by a program of ours that serves `sampler.engine.api` over it.

    HTTP (`sampler.engine.api`) ─▶ engine ─▶ vLLM's AsyncLLM ┄┄▶ vLLM's core and workers, processes of their own
                                                                    └ worker.WeightsWorker: new weights over the network

It runs in vLLM's own virtual environment, which has none of our dependencies but those that vLLM has too (starlette, uvicorn,
jinja2, tokenizers, safetensors). Promises: as of the local engine, with two differences. Log-probs are those of the distribution
that was sampled: after top-p, top-k, min-p and penalties. And a failed update leaves the engine paused.
Run it: `python -m sampler.engine.vllm --help`.
"""
