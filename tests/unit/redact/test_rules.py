"""Each shipped rule finds what it is for, and leaves alone what only looks like it."""

from __future__ import annotations

import time

import pytest

from stockade.redact import PLACEHOLDER, Redactor, Rule, load_rule_set, parse_rules
from stockade.redact._width import UNBOUNDED, max_width
from tests.unit.redact.samples import HARMLESS, MARKED, TOKENS, URLS

SECRETS = Redactor()
MARKED_SAMPLES = [(rule, text) for rule, texts in MARKED.items() for text in texts]
URL_SAMPLES = [(rule, text) for rule, texts in URLS.items() for text in texts]


@pytest.mark.parametrize(
    ("rule", "token"), [(rule, token) for rule, tokens in TOKENS.items() for token in tokens]
)
@pytest.mark.parametrize("around", ["{}", "see {} there", '{{"k":"{}"}}', "x={}\n", "({})."])
def test_token_is_hidden_and_nothing_else(rule: str, token: str, around: str) -> None:
    """A token of a known format is replaced; the text around it stays."""
    assert SECRETS.text(around.format(token)).text == around.format(PLACEHOLDER)
    assert rule in {hit.rule_id for hit in SECRETS.text(token).hits}


@pytest.mark.parametrize(("rule", "marked"), MARKED_SAMPLES)
def test_value_is_hidden_and_its_name_stays(rule: str, marked: str) -> None:
    """Of an assignment, header or parameter, the value goes and the rest stays."""
    before, secret, after = marked.split("@")
    redacted = SECRETS.text(before + secret + after)
    assert redacted.text == before + PLACEHOLDER + after
    assert rule in {found.id for found in load_rule_set("secrets")}


@pytest.mark.parametrize(("rule", "marked"), URL_SAMPLES)
def test_url_credential_is_hidden(rule: str, marked: str) -> None:
    """Of a URL, the password or token goes; user, host and path stay."""
    before, _, rest = marked.partition("<")
    secret, _, after = rest.partition(">")
    redacted = SECRETS.text(before + secret + after)
    assert redacted.text == before + PLACEHOLDER + after
    assert [hit.rule_id for hit in redacted.hits] == [rule]


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays(text: str) -> None:
    """Placeholders, public keys, types, references and prose are not touched."""
    assert SECRETS.text(text).text == text


def test_every_shipped_rule_has_a_sample() -> None:
    """No rule is shipped untested."""
    tested = {*TOKENS, *MARKED, *URLS, "private-key"}
    assert {rule.id for rule in load_rule_set("secrets")} == tested


@pytest.mark.parametrize("name", ["secrets", "host-paths"])
def test_rule_keywords_are_part_of_its_head(name: str) -> None:
    """The prefilter misses nothing: with keywords or without, samples give the same result."""
    rules = load_rule_set(name)
    bare = Redactor(
        (),
        rules=[
            Rule(id=r.id, regex=r.regex, tail=r.tail, finish=r.finish, allow=r.allow) for r in rules
        ],
    )
    texts = [*(t for ts in TOKENS.values() for t in ts), *(t for ts in MARKED.values() for t in ts)]
    assert [bare.text(t).text for t in texts] == [Redactor((name,)).text(t).text for t in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Report at /home/alice/data/report.md.", "Report at [REDACTED]."),
        ("(/etc/passwd), file:///srv/x", "([REDACTED]), file://[REDACTED]"),
        ('"path": "/var/lib/app/db.sqlite"', '"path": "[REDACTED]"'),
        ("PYTHONPATH=a:/opt/b/c", "PYTHONPATH=a:[REDACTED]"),
        (r"C:\Users\bob\x.txt", "[REDACTED]"),
        ("/root/.ssh/id_rsa: no", "[REDACTED]: no"),
        ("/home/jörg/ü.txt", "[REDACTED]"),
        ("/workspace/home/x ./home/y a/etc/b", "/workspace/home/x ./home/y a/etc/b"),
        ("https://a.test/home/x /home /etc", "https://a.test/home/x /home /etc"),
    ],
)
def test_host_paths_are_hidden(text: str, expected: str) -> None:
    """A path below a root of the host is hidden; the sandbox's own paths and URLs stay."""
    assert Redactor(("host-paths",)).text(text).text == expected


def test_host_roots_can_be_replaced() -> None:
    """Who has other directories to hide names them."""
    redactor = Redactor(("host-paths",), host_roots=("/data/team.x",))
    assert redactor.text("/data/team.x/a /data/teamXx/a /home/a").text == (
        "[REDACTED] /data/teamXx/a /home/a"
    )


@pytest.mark.parametrize("root", ["home", "/", ""])
def test_host_root_must_be_absolute(root: str) -> None:
    """A root that would hide everything, or nothing, is refused."""
    with pytest.raises(ValueError, match="host root"):
        Redactor(("host-paths",), host_roots=(root,))


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ('[[rule]]\nid = "a"\nregex = "x+"', "at most 1024 bytes"),
        ('[[rule]]\nid = "a"\nregex = "(x"', "ends too early"),
        ('[[rule]]\nid = "a"\nregex = "(?=x)"', "not for rules"),
        ('[[rule]]\nid = "a"\nregex = "x"\ntail = "y*"', "at most 64 bytes"),
        ('[[rule]]\nid = "a"\nregexp = "x"', "regexp"),
        ('[[rule]]\nid = "a"\nkeywords = ["x"]', "regex"),
        ('[[rule]]\nid = "a"\nregex = "x"\n[[rule]]\nid = "a"\nregex = "y"', "repeated"),
        ('[rules]\nid = "a"', "unknown keys"),
    ],
)
def test_bad_rule_is_refused(toml: str, reason: str) -> None:
    """A rule that could not be trusted in a stream, or is misspelt, is an error that says why."""
    with pytest.raises(ValueError, match=reason):
        parse_rules(toml)


def test_unknown_rule_set_is_refused() -> None:
    """A misspelt set is an error, not a redactor that finds nothing."""
    with pytest.raises(ValueError, match="secret-s"):
        Redactor(("secret-s",))


def test_entropy_keeps_what_repeats() -> None:
    """A rule with an entropy floor leaves repeated characters alone."""
    rules = parse_rules('[[rule]]\nid = "a"\nregex = "id=([a-z0-9]{12})"\nentropy = 3.0')
    redactor = Redactor((), rules=rules)
    assert redactor.text("id=aaaaaaaaaaaa id=a8f3k2m9x7q1").text == "id=aaaaaaaaaaaa id=[REDACTED]"


@pytest.mark.parametrize(
    ("pattern", "width"),
    [
        ("abc", 3),
        ("a|bcd", 3),
        (r"\bsk-[A-Za-z0-9_\-\]]{2,20}", 23),
        ("(?i:ab)?(?:c{2}){3}", 8),
        (r"\x41\\[^]a]$", 3),
        ("é", 2),
        ("a*", UNBOUNDED),
        ("(a+b)?", UNBOUNDED),
        ("a{3,}", UNBOUNDED),
    ],
)
def test_width_is_the_longest_match(pattern: str, width: int) -> None:
    """The bound that streams rely on is computed from the pattern."""
    assert max_width(pattern) == width


@pytest.mark.parametrize("pattern", ["(", ")", "[a", "*a", "a{x}", r"\pL", "(?P<a>b)", "\\"])
def test_width_refuses_what_it_does_not_know(pattern: str) -> None:
    """Syntax outside the known part is an error, never a guessed width."""
    with pytest.raises(ValueError, match=r"."):
        max_width(pattern)


@pytest.mark.parametrize(
    "unit", ["password=", "-----BEGIN PRIVATE KEY-----", "eyJ", "a://", "/etc/x"]
)
def test_time_grows_with_the_text(unit: str) -> None:
    """Eight times the hostile text takes about eight times as long, not sixty-four."""
    redactor = Redactor(("secrets", "host-paths"))
    times = []
    for size in (50_000, 400_000):
        text = unit * (size // len(unit))
        started = time.process_time()
        redactor.text(text)
        times.append(time.process_time() - started)
    assert times[1] < max(times[0], 0.005) * 24
