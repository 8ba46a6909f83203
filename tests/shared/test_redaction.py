"""Connection strings, URLs and messages about them are shown without secrets."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo.uri_parser_shared import URI_OPTIONS

from shared.errors import ConfigError
from shared.redaction import HIDDEN, is_plain, redacted, redacted_values, shown
from shared.store.connecting import connect

PASSWORD = "s3cr3tw0rd"


@pytest.mark.parametrize(
    ("url", "visible"),
    [
        ("mongodb://db:27017/?replicaSet=rs0&tls=true", "mongodb://db:27017/?replicaSet=rs0&tls=true"),
        (f"mongodb://ann:{PASSWORD}@db:27017/", "mongodb://db:27017/"),
        (f"mongodb://ann:{PASSWORD}@a:1,b:2/db?authSource=admin", "mongodb://a:1,b:2/db?authSource=admin"),
        (
            f"mongodb+srv://ann:{PASSWORD}@cluster.example.net/?w=majority",
            "mongodb+srv://cluster.example.net/?w=majority",
        ),
        (f"mongodb://db/?tls=true&tlsCertificateKeyFilePassword={PASSWORD}", f"mongodb://db/?tls=true&{HIDDEN}"),
        (f"mongodb://db/?TLSCERTIFICATEKEYFILEPASSWORD={PASSWORD};tls=true", f"mongodb://db/?{HIDDEN}&tls=true"),
        (f"mongodb://db/?authMechanismProperties=AWS_SESSION_TOKEN:{PASSWORD}", f"mongodb://db/?{HIDDEN}"),
        (f"mongodb://db/?password={PASSWORD}&{PASSWORD}", f"mongodb://db/?{HIDDEN}&{HIDDEN}"),
        (f"http://ann:{PASSWORD}@gateway:8000/mcp?token={PASSWORD}", f"http://gateway:8000/mcp?{HIDDEN}"),
        ("mongodb://[::1]:27017/", "mongodb://[::1]:27017/"),
        ("mongodb://%2Frun%2Fmongodb.sock/db", "mongodb://%2Frun%2Fmongodb.sock/db"),
        # What should have been escaped cannot be told from the rest, so nothing of it is shown.
        (f"mongodb://ann:{PASSWORD}/{PASSWORD}@db/", f"mongodb://{HIDDEN}"),
        (f"mongodb://ann:12/{PASSWORD}@db/", f"mongodb://{HIDDEN}"),
        (f"mongodb://ann:{PASSWORD}?{PASSWORD}@db/", f"mongodb://{HIDDEN}"),
        (f"mongodb://ann:{PASSWORD}#{PASSWORD}@db/", f"mongodb://{HIDDEN}"),
        (f"mongodb://ann:{PASSWORD}", f"mongodb://{HIDDEN}"),
        (f"mongodb://db/?tlsCertificateKeyFilePassword={PASSWORD}@{PASSWORD}", f"mongodb://{HIDDEN}"),
        (PASSWORD, HIDDEN),
        ("", HIDDEN),
    ],
)
def test_a_url_is_shown_without_user_password_and_unknown_options(url: str, visible: str) -> None:
    assert shown(url) == visible
    assert PASSWORD not in visible
    assert is_plain(url) == (url == visible)


def test_of_every_option_that_the_driver_knows_only_those_without_a_secret_are_shown() -> None:
    hidden = {name for name in map(str.lower, URI_OPTIONS) if not is_plain(f"mongodb://h/?{name}=x")}
    assert {"tlscertificatekeyfilepassword", "authmechanismproperties"} <= hidden
    assert hidden <= {
        "tlscertificatekeyfilepassword",
        "authmechanismproperties",
        "proxyhost",
        "proxyport",
        "proxyusername",
        "proxypassword",
        "enableoverloadretargeting",
        "maxadaptiveretries",
        "serverselectiontryonce",
        "srvallowedhostssuffix",
        "tlsdisablecertificaterevocationcheck",
    }


@given(user=st.text("abcXYZ09", min_size=1), password=st.text(min_size=8).map(lambda text: f"pw{text}"))
def test_no_password_is_shown_however_it_was_escaped(user: str, password: str) -> None:
    for written in (password, quote(password, safe="")):
        url = f"mongodb://{user}:{written}@db:27017/?tls=true"
        assert shown(url) in ("mongodb://db:27017/?tls=true", f"mongodb://{HIDDEN}")


@pytest.mark.parametrize(
    "url",
    [
        f"mongodb://ann:{PASSWORD}/x{PASSWORD}@db/",
        f"mongodb://ann:x/{PASSWORD}.y@db/",
        f"mongodb://ann:{PASSWORD}:{PASSWORD}@db:x/",
        f"mongodb://ann:{PASSWORD}@db:99999/",
        f"mongodb://ann:{PASSWORD}@db/a.b?x",
        f"mongodb://db/?tlsCertificateKeyFilePassword={PASSWORD}&authMechanismProperties={PASSWORD}",
        f"mongodb://db/?tlsCertificateKeyFilePassword={PASSWORD}&tls=false",
        f"mongodb://db/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN={PASSWORD}",
    ],
)
async def test_the_drivers_messages_about_a_connection_string_lose_its_secrets(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = ""
    try:
        await connect(url, 0.1).close()
    except ConfigError as exc:
        said = str(exc)
    assert said or caplog.text
    assert PASSWORD not in said + caplog.text
    assert PASSWORD not in redacted(f"cannot open {url}: {said}", url)


def test_urls_in_a_text_lose_their_secrets_and_the_rest_stays() -> None:
    said = f"GET http://ann:{PASSWORD}@h:1/mcp?key={PASSWORD}: 401. See http://h:1/help."
    assert redacted(said) == f"GET http://h:1/mcp?{HIDDEN}: 401. See http://h:1/help."
    assert redacted("no URL: a@b") == "no URL: a@b"


def test_a_short_secret_is_hidden_where_it_is_a_separate_word() -> None:
    assert redacted("pw of upward: pw", "mongodb://u:pw@h") == f"{HIDDEN} of upward: {HIDDEN}"


def test_values_of_a_configuration_are_shown_without_secrets() -> None:
    url = f"http://u:{PASSWORD}@h/?k={PASSWORD}"
    assert redacted_values({"urls": [url], "n": 1, "inner": {"url": url}}) == {
        "urls": [f"http://h/?{HIDDEN}"],
        "n": 1,
        "inner": {"url": f"http://h/?{HIDDEN}"},
    }


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_url_hides_nothing(blank: str) -> None:
    assert redacted("no database was given", blank) == "no database was given"


BREAKS = st.sampled_from([" ", '"', "'", "<", ">", "`", ", ", "\t", ") "])


@given(
    parts=st.lists(st.text("abcXYZ09", min_size=3, max_size=6), min_size=2, max_size=4, unique=True),
    breaks=st.lists(BREAKS, min_size=3, max_size=3),
    around=st.sampled_from(
        ["{}", '"{}"', "'{}'", "<{}>", "`{}`", "({})", "open {}: refused", "{}, and http://h/x", "to {}\nann@h"]
    ),
    scheme=st.sampled_from(["mongodb", "http", "mongodb+srv"]),
)
def test_no_part_of_a_password_is_shown_of_a_url_that_nobody_named(
    parts: list[str], breaks: list[str], around: str, scheme: str
) -> None:
    """The parts of a password that was not escaped, between blanks, quotes and angle brackets."""
    secrets = [f"S{number}{part}" for number, part in enumerate(parts)]
    password = secrets[0] + "".join(one + part for one, part in zip(breaks, secrets[1:], strict=False))
    said = redacted(around.format(f"{scheme}://ann:{password}@db:27017/?tls=true"))
    assert not [one for one in secrets if one in said]


@pytest.mark.parametrize("broken", ['pa"ss', "pa'ss", "pa<ss", "pa>ss", "pa`ss", "p\"a's<s"])
@pytest.mark.parametrize("around", ["{}", '"{}"', "'{}'", "<{}>", "at {} it failed"])
def test_no_part_of_an_option_is_shown_of_a_url_that_nobody_named(broken: str, around: str) -> None:
    said = redacted(around.format(f"http://h/?token={broken}"))
    assert "ss" not in said
    assert "s<s" not in said
    assert said.startswith(around.partition("{}")[0] + "http://h/?")


@pytest.mark.parametrize(
    "text",
    [
        '{"url": "http://h:1/x", "next": 2}',
        "<http://h:1/x> and (http://h:2/y), 'http://h:3' `http://h:4/`.",
        "http://h:1/x failed\nann@example.org",
        "no URL: a@b",
    ],
)
def test_a_text_without_a_secret_stays(text: str) -> None:
    assert redacted(text) == text
