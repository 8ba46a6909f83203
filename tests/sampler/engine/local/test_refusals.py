"""Every 400 in the captured words and shape of SGLang 0.5.23, and those specific to this engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sampler.engine.local.harness import CONTEXT, VOCABULARY, Server

PROMPT = [5, 100, 101]
LISTED = "unknown field `nonsense`, expected one of `max_new_tokens`, `stop`, `stop_token_ids`, `stop_regex`, "


def value(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, value("Either text, input_ids or input_embeds should be provided.")),
        ({"input_ids": []}, value("input_ids cannot be empty.")),
        (
            {"input_ids": [3] * (CONTEXT + 5)},
            value(f"The input ({CONTEXT + 5} tokens) is longer than the model's context length ({CONTEXT} tokens)."),
        ),
        (
            {"input_ids": [3] * CONTEXT},
            value(f"The input ({CONTEXT} tokens) is longer than the model's context length ({CONTEXT} tokens)."),
        ),
        (
            {"input_ids": [3] * (CONTEXT - 24), "sampling_params": {"max_new_tokens": 100}},
            value(
                f"Requested token count exceeds the model's maximum context length of {CONTEXT} tokens. You requested "
                f"a total of {CONTEXT + 76} tokens: {CONTEXT - 24} tokens from the input messages and 100 tokens for "
                "the completion. Please reduce the number of tokens in the input messages or the completion to fit "
                "within the limit."
            ),
        ),
        (
            {"input_ids": [PROMPT, PROMPT], "rid": ["dup", "dup"]},
            value("Duplicate request IDs detected within the request: ['dup']"),
        ),
        (
            {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 50},
            value(
                "req.logprob_start_len=50 is higher than the number of input tokens len(req.origin_input_ids)=3. "
                "Please use a smaller logprob_start_len."
            ),
        ),
        # these two crash SGLang
        (
            {"input_ids": [5, VOCABULARY]},
            value(f"input_ids[1] is {VOCABULARY}; the vocabulary of this model has ids 0 to {VOCABULARY - 1}."),
        ),
        (
            {"input_ids": [5, -1]},
            value(f"input_ids[1] is -1; the vocabulary of this model has ids 0 to {VOCABULARY - 1}."),
        ),
    ],
)
def test_a_bad_request_is_refused_in_sglangs_words(
    server: Server, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    response = server.post("/generate", body)
    assert (response.status_code, response.json()) == (400, expected)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1."),
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1."),
        ({"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0."),
    ],
)
def test_a_bad_sampling_value_is_refused_in_sglangs_words(
    server: Server, sampling: dict[str, Any], message: str
) -> None:
    response = server.post("/generate", {"input_ids": PROMPT, "sampling_params": sampling})
    assert (response.status_code, response.json()) == (400, value(message))


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"max_new_tokens": "8"}, 'invalid type: string "8", expected i64'),
        ({"temperature": "hot"}, 'invalid type: string "hot", expected f64'),
        ({"stop_token_ids": ["a"]}, "invalid type: sequence `['a']`, expected a list of i64"),
    ],
)
def test_a_sampling_parameter_of_the_wrong_type_is_refused(
    server: Server, sampling: dict[str, Any], message: str
) -> None:
    response = server.post("/generate", {"input_ids": PROMPT, "sampling_params": sampling})
    assert (response.status_code, response.json()) == (400, {"error": message})


def test_an_unknown_sampling_parameter_is_refused_with_the_known_ones(server: Server) -> None:
    response = server.post("/generate", {"input_ids": PROMPT, "sampling_params": {"nonsense": 1}})
    assert response.status_code == 400
    assert response.json()["error"].startswith(LISTED)


def test_an_unknown_top_level_key_is_ignored(server: Server) -> None:
    body = {"input_ids": PROMPT, "nonsense_key": 1, "sampling_params": {"max_new_tokens": 1}}
    assert server.post("/generate", body).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"input_ids": [1,2,', "json_invalid"),
        (b"", "missing"),
        (b"[1,2]", "dataclass_type"),
        (b'{"input_ids": ["a"]}', "elements must be int or list; got str"),
        (b'{"input_ids": [1.5]}', "elements must be int or list; got float"),
        (b'{"input_ids": [[1], ["b"]]}', "elements must be int or list; got str"),
    ],
)
def test_a_malformed_body_is_an_error_object(server: Server, content: bytes, kind: str) -> None:
    response = server.post("/generate", content=content, headers={"Content-Type": "application/json"})
    body = response.json()
    assert (response.status_code, body["object"], body["code"], body["type"]) == (400, "error", 400, "Bad Request")
    assert kind in body["message"]


def test_a_body_that_is_not_declared_json_is_refused(server: Server) -> None:
    response = server.post("/generate", content=b'{"input_ids": [5]}')
    assert (response.status_code, response.json()["object"]) == (400, "error")


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation", "/abort_request"])
def test_control_requests_need_a_body(server: Server, path: str) -> None:
    response = server.post(path)
    assert (response.status_code, response.json()["object"]) == (400, "error")
    assert "Field required" in response.json()["message"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/pause_generation", {"mode": "zzz"}, "Input should be 'abort', 'retract' or 'in_place'"),
        ("/update_weights_from_disk", {"weight_version": "v"}, "'model_path'), 'msg': 'Field required'"),
        ("/update_weights_from_disk", {"model_path": "x", "weight_version": 5}, "Input should be a valid string"),
    ],
)
def test_a_control_request_with_a_bad_field_is_refused(
    server: Server, path: str, body: dict[str, Any], words: str
) -> None:
    response = server.post(path, body)
    assert (response.status_code, response.json()["object"]) == (400, "error")
    assert words in response.json()["message"]


def test_an_over_long_stream_is_an_error_event_with_status_200(server: Server) -> None:
    response = server.post("/generate", {"input_ids": [3] * CONTEXT, "stream": True})
    message = f"The input ({CONTEXT} tokens) is longer than the model's context length ({CONTEXT} tokens)."
    event = f'{{"message":"{message}","type":"invalid_request_error","code":400,"retryable":false}}'
    assert (response.status_code, response.text) == (200, f'data: {{"error":{event}}}\n\ndata: [DONE]\n\n')


@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {"regex": "a+"}},
        {"sampling_params": {"repetition_penalty": 1.1}},
        {"sampling_params": {"min_new_tokens": 4}},
        {"sampling_params": {"no_stop_trim": True}},
        {"sampling_params": {"logit_bias": {"2": 100}}},
        {"lora_path": "x"},
        {"return_logprob": True, "top_logprobs_num": 3},
    ],
)
def test_options_that_only_sglang_supports_are_refused_and_not_ignored(server: Server, body: dict[str, Any]) -> None:
    response = server.post("/generate", {"input_ids": PROMPT, **body})
    assert response.status_code == 400
    assert "not supported by the local engine" in response.json()["error"]["message"]


def test_log_probs_of_a_prompt_are_refused_in_a_stream_as_its_one_event(server: Server) -> None:
    body = {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 0, "stream": True}
    response = server.post("/generate", body)
    assert (response.status_code, response.text.count("data: {")) == (200, 1)
    assert "stream with log-probs of prompt tokens is not supported by the local engine" in response.text


def test_neutral_values_of_what_is_refused_are_accepted(server: Server) -> None:
    sampling = {"repetition_penalty": 1.0, "frequency_penalty": 0, "presence_penalty": 0.0, "max_new_tokens": 1}
    sampling |= {"min_new_tokens": 0, "no_stop_trim": False}
    assert server.post("/generate", {"input_ids": PROMPT, "sampling_params": sampling}).status_code == 200


def test_unknown_routes_and_methods_are_404_and_405(server: Server) -> None:
    missing, wrong = server.client.get("/nope"), server.client.get("/continue_generation")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})


def test_the_information_routes_have_the_fields_that_clients_read(server: Server) -> None:
    info = server.client.get("/server_info").json()
    assert (info["context_length"], info["max_running_requests"]) == (CONTEXT, 12)
    assert info["max_total_tokens"] == 12 * CONTEXT
    load = server.client.get("/v1/loads").json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["max_running_requests"]) == (0, 0, 12)
    assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == CONTEXT
    assert server.client.get("/ping").status_code == 200
    assert server.client.get("/health_generate").status_code == 200
    assert server.client.get("/model_info").json()["architectures"] == ["Qwen3ForCausalLM"]
