"""What `python -m sampler.gateway` refuses at its start, as a process."""

import os
import subprocess
import sys

import pytest

from tests.sampler.episodes import MODEL

ELSEWHERE = ["--gateway_host", "0.0.0.0", "--gateway_port", "0"]


@pytest.mark.parametrize(
    ("flags", "token", "said"),
    [
        (ELSEWHERE, None, "gateway_host is '0.0.0.0' without a token"),
        (ELSEWHERE, "", "gateway_token is empty"),
        (
            [*ELSEWHERE, "--gateway_token_file", "/no/such/file"],
            None,
            "gateway_token_file: /no/such/file cannot be read",
        ),
        (["--gateway_host", "203.0.113.1"], "t", "cannot listen on 203.0.113.1:9800"),
        (["--gateway_port", "70000"], None, "gateway_port"),
    ],
)
def test_a_wrong_address_or_token_ends_the_start_with_a_reason(flags: list[str], token: str | None, said: str) -> None:
    env = os.environ | ({} if token is None else {"TANDEM_SAMPLER_GATEWAY_TOKEN": token})
    run = ["--run", "x", "--db_connection_string", "mongodb://127.0.0.1:1", "--model_name_or_path", str(MODEL)]
    command = [sys.executable, "-m", "sampler.gateway", *run, *flags]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr
