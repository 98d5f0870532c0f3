"""Redacting texts, bytes and values: the cases C38 and C39, and what must hold for any input."""

from __future__ import annotations

import base64
import json
import urllib.parse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.redact import PLACEHOLDER, Hit, Redactor
from tests.unit.redact.samples import ALNUM, HARMLESS, MARKED, TOKENS

SECRETS = Redactor()
BEGIN = "-----BEGIN RSA " + "PRIVATE KEY-----"
END = "-----END RSA " + "PRIVATE KEY-----"
OPENAI = "sk-" + "ZYX987654321abcABC12T3BlbkFJqwer"
REGISTERED = "S3cret-" + "K9" * 12
PIECES = st.one_of(
    st.sampled_from(HARMLESS),
    st.sampled_from([token for tokens in TOKENS.values() for token in tokens]),
    st.sampled_from([text.replace("@", "") for texts in MARKED.values() for text in texts]),
    st.text(max_size=20),
    # Not `{REGISTERED}`: what follows a registered value directly gets its word boundary from the
    # placeholder, so that the second time finds more. Documented on Redactor.
    st.sampled_from([" ", "\n", '"', "=", "&", f" {REGISTERED} "]),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


def test_c38_private_key_in_json_keeps_the_json() -> None:
    """A key with backslash-n line ends is hidden whole, and the JSON around it still parses."""
    text = '{"rsa-key": "' + BEGIN + r"\nQUJDREVGR0g=\nSUpLTE1OT1A=\n" + END + '"}'
    assert json.loads(SECRETS.text(text).text) == {"rsa-key": PLACEHOLDER}


def test_c38_private_key_on_one_line() -> None:
    """A key whose line ends became spaces is hidden to its end, and what follows stays."""
    text = f"private_key={BEGIN} QUJDREVGR0g= SUpLTE1OT1A= {END} and text after"
    assert SECRETS.text(text).text == f"private_key={PLACEHOLDER} and text after"


def test_private_key_cut_off_is_hidden() -> None:
    """A key without its END line is hidden as far as it goes."""
    text = f"log: {BEGIN}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00FF\n\nQUJD\nREVG"
    assert SECRETS.text(text).text == f"log: {PLACEHOLDER}"


def test_c38_several_secrets_keep_the_text_between() -> None:
    """Positions refer to the original, so that later secrets are hidden and none is doubled."""
    text = f"a {OPENAI} b ghp_{'d2' * 18} c {OPENAI}"
    redacted = SECRETS.text(text)
    assert redacted.text == "a [REDACTED] b [REDACTED] c [REDACTED]"
    assert [text[hit.start : hit.end] for hit in redacted.hits] == [
        OPENAI,
        "ghp_" + "d2" * 18,
        OPENAI,
    ]


def test_c38_touching_tokens_leave_nothing() -> None:
    """Two tokens without a character between them are both hidden."""
    assert SECRETS.text("ghp_" + "a1" * 18 + "ghp_" + "b2" * 18).text == PLACEHOLDER


def test_c38_url_with_two_passwords() -> None:
    """The password in the authority and the one in the query are both hidden."""
    redacted = SECRETS.text("postgres://u:p%40ss@db.test/x?password=hunter2hunter2")
    assert redacted.text == "postgres://u:[REDACTED]@db.test/x?password=[REDACTED]"


def test_positions_count_characters() -> None:
    """In a text with characters of several bytes, a hit's positions are those of the text."""
    text = f"é€😀 {OPENAI} ü"
    redacted = SECRETS.text(text)
    assert redacted.hits == (Hit("openai-key", 4, 4 + len(OPENAI)),)
    assert redacted.text == "é€😀 [REDACTED] ü"


def test_surrogates_and_nul_are_kept() -> None:
    """Text that is not valid Unicode passes, and secrets in it are found."""
    assert SECRETS.text(f"\ud800\x00 {OPENAI} \udcff").text == "\ud800\x00 [REDACTED] \udcff"


def test_bytes_of_any_encoding_are_searched() -> None:
    """Broken UTF-8 hides nothing from the search."""
    assert SECRETS.bytes(b"\xff\xfe " + OPENAI.encode() + b" \x80").value == (
        b"\xff\xfe [REDACTED] \x80"
    )


@given(TEXTS)
def test_redacting_twice_changes_nothing(text: str) -> None:
    """What was redacted once stays as it is."""
    once = Redactor(("secrets",), extra_values=[REGISTERED]).text(text).text
    assert Redactor(("secrets",), extra_values=[REGISTERED]).text(once).text == once


@given(TEXTS)
def test_text_between_hits_is_unchanged(text: str) -> None:
    """The result is the original with each hit, and nothing else, replaced."""
    redacted = SECRETS.text(text)
    parts, at = [], 0
    for hit in redacted.hits:
        parts += [text[at : hit.start], PLACEHOLDER]
        at = hit.end
    assert redacted.text == "".join([*parts, text[at:]])


def _c39_arguments() -> dict[str, Any]:
    return {
        "cfg": {
            "headers": [{"Authorization": "Bearer " + "tok_" * 8}],
            "cookie": "sid=" + "9f" * 16,
        },
        "k": {"private_key": "x" * 40},
        "argv": ["docker", "run", "-e", "JIRA_TOKEN=" + "q7" * 16, "--with-token", "w9" * 16],
        "url": "https://user:pa55word@api.test/cb?access_token=" + "z1" * 16,
        "tok_as_key_" + "ab" * 16: 1,
    }


def test_c39_nested_arguments_keep_their_shape() -> None:
    """Secrets at any depth, in keys, headers, command lines and URLs go; the rest is readable."""
    assert SECRETS.value(_c39_arguments()).value == {
        "cfg": {"headers": [{"Authorization": PLACEHOLDER}], "cookie": PLACEHOLDER},
        "k": {"private_key": PLACEHOLDER},
        "argv": ["docker", "run", "-e", "JIRA_TOKEN=[REDACTED]", "--with-token", PLACEHOLDER],
        "url": "https://user:[REDACTED]@api.test/cb?access_token=[REDACTED]",
        PLACEHOLDER: 1,
    }


def _variants(secret: str) -> dict[str, str]:
    raw = secret.encode()
    return {
        "plain": secret,
        "base64": base64.b64encode(raw).decode(),
        "base64url": base64.urlsafe_b64encode(raw).decode().rstrip("="),
        "percent": urllib.parse.quote(secret, safe=""),
        "form": urllib.parse.quote_plus(secret),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "json": json.dumps(secret)[1:-1],
        "json in json": json.dumps(json.dumps(secret)[1:-1])[1:-1],
        "raw json": json.dumps(secret, ensure_ascii=False)[1:-1],
    }


@pytest.mark.parametrize("form", list(_variants("x")))
@pytest.mark.parametrize("secret", [REGISTERED, 'a"b\\c/d é\n€😀 &<x>?~'])
def test_c39_registered_value_is_found_in_each_form(secret: str, form: str) -> None:
    """A registered value goes in the forms that JSON, URLs, headers and dumps give it."""
    redactor = Redactor((), extra_values=[secret])
    assert redactor.text(f"<{_variants(secret)[form]}>").text == f"<{PLACEHOLDER}>"


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_registered_value_is_found_inside_longer_base64(shift: int) -> None:
    """`user:secret` in base64 does not show the secret, wherever it begins."""
    blob = base64.b64encode(b"x" * shift + REGISTERED.encode() + b":tail").decode()
    shown = Redactor((), extra_values=[REGISTERED]).text(blob).text
    assert PLACEHOLDER in shown
    assert len(shown.replace(PLACEHOLDER, "")) <= 12


def test_c39_reversed_value_is_not_found() -> None:
    """The documented limit: a value that was turned round is not recognised."""
    turned = REGISTERED[::-1]
    assert Redactor((), extra_values=[REGISTERED]).text(turned).text == turned


@pytest.mark.parametrize("value", ["", "abc", "x" * 5000])
def test_unusable_registered_value_is_refused_unseen(value: str) -> None:
    """A value that can't be looked for is an error, and the error does not show it."""
    with pytest.raises(ValueError, match="bytes") as error:
        Redactor((), extra_values=[value])
    assert value == "" or value not in str(error.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            {"max_token": 5, "token": 5, "ok": True},
            {"max_token": 5, "token": PLACEHOLDER, "ok": True},
        ),
        ({"password": None, "secret": False}, {"password": None, "secret": False}),
        ({"X-Api-Key": "a", "apiKey": "b"}, {"X-Api-Key": PLACEHOLDER, "apiKey": PLACEHOLDER}),
        ({"credentials": {"a": 1}}, {"credentials": PLACEHOLDER}),
        ({"env": {"PWD": "/w"}, "tokens": 3, "keyword": "k"}, None),
        (("login", "--password", "--force"), None),
        (["curl", "-u", "me:pw"], ["curl", "-u", PLACEHOLDER]),
        (["docker", "-u", "1000:1000"], None),
        ({1: b"x", None: 2.5}, None),
    ],
)
def test_names_decide_about_values(value: Any, expected: Any) -> None:
    """Telling keys and options hide what they name, counts and flags stay."""
    assert SECRETS.value(value).value == (value if expected is None else expected)


def test_keys_made_equal_stay_apart() -> None:
    """Two secret keys do not become one entry."""
    value = {"ghp_" + ALNUM: 1, "ghp_" + ALNUM[::-1]: 2}
    assert SECRETS.value(value).value == {PLACEHOLDER: 1, f"{PLACEHOLDER}#2": 2}


def test_endless_depth_is_cut() -> None:
    """A value nested beyond the cap is cut there instead of exhausting the stack."""
    value: list[Any] = ["password=hunter2"]
    for _ in range(5000):
        value = [value]
    text = str(SECRETS.value(value).value)
    assert "TRUNCATED" in text
    assert "hunter2" not in text
