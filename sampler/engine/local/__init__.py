"""The local engine: the subset of SGLang's HTTP API that Tandem uses, on transformers, for laptops and tests.

    HTTP (`sampler.engine.api`)         one thread that owns the model and the KV cache
    server ─▶ engine ─▶ scheduler ─▶ [ admit ─▶ prefill ─▶ decode ─▶ sample ]* ─▶ server
                              │            kv        lean | stock        sampling
                              └ weights (read and verified before anything live is touched)

Promises: log-probabilities are float32 log_softmax(logits / temperature) over what min-p, top-k and top-p leave, equal to a
plain transformers forward to 1e-5; every token is computed under the version given in `weight_versions`; a bad request or a
bad checkpoint is a 400 and the server keeps running. Run it: `python -m sampler.engine.local --help`.
"""
