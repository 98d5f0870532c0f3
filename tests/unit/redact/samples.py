"""Made-up secrets, put together from parts so that no scanner takes this file for a leak."""

from __future__ import annotations

ALNUM = "aZ3bY4cX5dW6eV7fU8gT9hS0iR1jQ2kP"
HEX = "0123456789abcdef" * 4

#: rule id -> texts that are, as a whole, one secret of that rule
TOKENS = {
    "anthropic-key": ["sk-ant-" + "api03-" + ALNUM + "-" + ALNUM + "_AA"],
    "openai-key": ["sk-" + ALNUM + "T3BlbkFJ", "sk-proj-" + ALNUM + "_-" + ALNUM],
    "model-provider-key": ["hf_" + ALNUM, "gsk_" + ALNUM, "xai-" + ALNUM, "r8_" + ALNUM],
    "aws-access-key-id": ["AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "Z234567ABCDEFGHI"],
    "gcp-key": ["AIza" + ALNUM + "abc", "ya29." + ALNUM, "GOCSPX-" + ALNUM],
    "azure-client-secret": ["abc8Q~" + ALNUM],
    "cloud-token": ["dop_v1_" + HEX, "hvs." + ALNUM, "dapi" + HEX[:32]],
    "github-token": ["ghp_" + ALNUM + "abcd", "github_pat_" + ALNUM + "_" + ALNUM, "gho_" + ALNUM],
    "gitlab-token": ["glpat-" + ALNUM[:20], "glrt-" + ALNUM[:20]],
    "package-index-token": ["npm_" + ALNUM + "abcd", "pypi-AgE" + "IcHlwaS5vcmc" + ALNUM],
    "slack-token": ["xoxb-" + "123456789012-" + ALNUM, "xapp-1-" + ALNUM],
    "payment-key": ["sk_live_" + ALNUM, "rk_test_" + ALNUM, "whsec_" + ALNUM],
    "mail-and-message-key": [
        "SG." + ALNUM[:22] + "." + ALNUM,
        "SK" + HEX[:32],
        "123456789:AA" + ALNUM + "x",
    ],
    "product-token": ["ntn_" + ALNUM, "lin_api_" + ALNUM, "glsa_" + ALNUM, "PMAK-" + ALNUM],
    "jwt": ["eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxIn0" + "." + ALNUM],
    "prefixed-token": ["tok_as_key_" + "ab" * 16],
    "age-secret-key": ["AGE-SECRET-KEY-1" + "QPZRY9X8GF" * 5],
}

#: text with @ around what must go
MARKED = {
    "authorization": ["Authorization: Basic @" + "dXNlcjpwYXNz@", '"x-api-key": "@abcdef123@"'],
    "bearer": ["use Bearer @" + ALNUM + "@ now"],
    "cookie": ["Cookie: @sid=" + ALNUM + "; theme=dark@\r\nHost: a.test"],
    "query-parameter": ["GET /cb?x=1&access_token=@" + ALNUM + "@&y=2"],
    "assignment-quoted": ['{"password": "@correct horse@"}', 'api_key = "@it\\"s mine@"'],
    "assignment-single-quoted": ["client_secret: '@hunter2@'"],
    "assignment-escaped-quotes": ['{\\"token\\": \\"@abc-def@\\", \\"n\\": 1}'],
    "password-assignment": ["password=@hunter2hunter2@;x", "db passwd: @letmein@, ok"],
    "token-assignment": ["api_key=@abcdef1234@ x", "token: @a1b2c3d4@"],
    "environment-assignment": ["FOO_KEY=@supersecretvalue123456789@", "export FOO_TOKEN: @q7q7@"],
    "flag": ["tool --with-token @w9w9w9@ --x", "login --password=@hunter2@ me"],
    "curl-user": ["curl -s -u me:@pa55@ https://a.test"],
    "netrc": ["machine a.test login me password @pa55@"],
    "aws-secret-key": ["aws_secret_access_key = @" + (ALNUM + ALNUM)[:40] + "@"],
    "azure-key": ["AccountName=a;AccountKey=@" + ALNUM + "==@;EndpointSuffix=x"],
    "webhook-url": ["https://hooks.slack.com/services/@T00000000/B00000000/" + ALNUM + "@ ok"],
    "pwd-assignment": ["Server=db;Uid=sa;Pwd=@hunter2@;"],
}
#: The same for rules whose text itself needs an @.
URLS = {
    "url-password": ("postgres://u:<p%40ss>@db.test/x", "redis://:<hunter2>@h:1/0"),
    "url-token": ("https://<" + ALNUM + ">@git.test/x.git",),
}

#: What looks like a secret and must stay.
HARMLESS = [
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
    "-----BEGIN CERTIFICATE-----\nQUJDREVGR0g=\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\nQUJDREVGR0g=\n-----END PUBLIC KEY-----",
    "max_tokens: 4096, primary_key=id, sort_key: name",
    "password: str, token: Optional[str] = None",
    "password = getpass.getpass()",
    "token=$GITHUB_TOKEN password=${DB_PASSWORD}",
    "the token is read from the environment; a password is not needed",
    "PWD=/workspace/project OLDPWD=/tmp",
    "task-1234567890 risk-management desk-lamps sk-fading-circle",
    "https://example.test:8080/a@b?page=2&keyword=cats",
    "commit 9c1185a5c5e9fc54612808977ee8f548b2258d31 sha256:" + HEX,
    "user@example.test, see http://[::1]:80/",
    "author: tokenizer=basic, passage: secretary",
    "[REDACTED]",
    "password=[REDACTED] https://u:[REDACTED]@a.test/?token=[REDACTED]",
]
