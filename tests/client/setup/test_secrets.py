"""Which texts are secrets, and what is left in their place."""

import re
from typing import Any

import pytest

from carpool.setup.secrets import secrets_of, without_secrets
from carpool_protocol.carrier.secret_texts import is_secret_name, looks_secret


def hidden(server: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    found: list[str] = []

    def named(purpose: str, value: str) -> str:
        found.append(value)
        return re.sub(r"\W+", "_", purpose).strip("_").upper()

    return without_secrets(server, named), found


@pytest.mark.parametrize(
    "name",
    [
        *("GITHUB_TOKEN", "apiKey", "OPENAI_API_KEY", "db.password", "--api-key", "-auth-token", "X-Api-Key"),
        *("Authorization", "Cookie", "AWS_SECRET_ACCESS_KEY", "MYSQL_PWD", "GH_PAT", "SENTRY_DSN"),
    ],
)
def test_a_name_may_say_that_it_is_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "GIT_AUTHOR_NAME", "LOG_LEVEL", "KEYBOARD", "TOKEN_FILE", "PATTERN", "--port"]
)
def test_other_names_do_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "ghp_0123456789abcdefABCDEF0123456789abcd",
        "sk-ant-api03-AbCdEfGh1234",
        "xoxb-123456789012-abcdef",
        "glpat-x1y2z3a4b5c6d7",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "7f9c2b1d4e8a6f3b5f9c2b1d4e8a6f3b",
        "AKIAIOSFODNN7EXAMPLE",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_text_may_show_that_it_is_a_secret(text: str) -> None:
    assert looks_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        *("production", "claude-3-5-sonnet-20241022", "@modelcontextprotocol/server-github@1.2.3"),
        *(
            "/home/me/code/mcp-server-2/dist/index.js",
            "mcp-server-sqlite",
            "https://mcp.example/mcp",
            "us-east-1",
        ),
        *(
            "git+https://github.com/a/b@abcdef0123456789abcdef0123456789abcdef01",
            "2025-11-25",
            "sk-learn-server",
        ),
    ],
)
def test_ordinary_texts_do_not(text: str) -> None:
    assert not looks_secret(text)
    assert hidden({"args": [text]}) == ({"args": [text]}, [])


@pytest.mark.parametrize(
    ("args", "left", "found"),
    [
        (["--api-key", "v1"], ["--api-key", "${API_KEY}"], ["v1"]),
        (["--api-key", "--port", "80"], ["--api-key", "--port", "80"], []),
        (["--token=v1", "--port=80"], ["--token=${TOKEN}", "--port=80"], ["v1"]),
        (["-e", "A_KEY=v1", "-e", "B=c"], ["-e", "A_KEY=${A_KEY}", "-e", "B=c"], ["v1"]),
        (
            ["--header", "Authorization: Bearer v1"],
            ["--header", "Authorization: Bearer ${AUTHORIZATION}"],
            ["v1"],
        ),
        (["--header=X-Api-Key: v1"], ["--header=X-Api-Key: ${X_API_KEY}"], ["v1"]),
        (["--header", "Authorization:${AUTH}"], ["--header", "Authorization:${AUTH}"], []),
        (["postgresql://u:v1@h:5/d"], ["postgresql://u:${ARG_PASSWORD}@h:5/d"], ["v1"]),
        (["https://h/mcp?a=b&api_key=v1#x"], ["https://h/mcp?a=b&api_key=${API_KEY}#x"], ["v1"]),
        (['{"apiKey": "v1", "a": "b"}'], ['{"apiKey": "${APIKEY}", "a": "b"}'], ["v1"]),
        (["--password", "a$${b}"], ["--password", "${PASSWORD}"], ["a${b}"]),
    ],
)
def test_an_argument_loses_only_its_secret(args: list[str], left: list[str], found: list[str]) -> None:
    assert hidden({"args": args}) == ({"args": left}, found)


def test_a_secret_in_the_path_of_a_url_is_found() -> None:
    token = "Zm9vYmFyMTIzNDU2Nzg5MDEyMzQ1Njc4"
    assert hidden({"url": f"https://h/api/s/{token}/mcp"}) == ({"url": "https://h/api/s/${URL}/mcp"}, [token])


def test_what_refers_to_a_variable_already_stays() -> None:
    server = {
        "env": {"API_KEY": "${MY_KEY}", "B_TOKEN": "${B:-none}", "DEBUG": "1", "C_KEY": "true", "D_KEY": ""},
        "headers": {"Authorization": "Bearer ${T}", "Accept": "application/json"},
    }
    assert hidden(server) == (server, [])


def test_a_secret_beside_a_reference_is_found() -> None:
    server = {"env": {"URL": "postgres://u:hunter2@${HOST}/d", "X": "ghp_0123456789abcdef${Y}"}}
    left, found = hidden(server)
    assert found == ["hunter2", "ghp_0123456789abcdef"]
    assert left == {"env": {"URL": "postgres://u:${URL_PASSWORD}@${HOST}/d", "X": "${X}${Y}"}}


def test_the_secrets_of_servers_that_stay_are_known_too() -> None:
    servers: dict[str, Any] = {
        "a": {"environment": {"K_TOKEN": "v1"}, "command": ["x", "--token", "v2"], "envFile": ".env"},
        "b": {
            "httpUrl": "https://u:v3@h",
            "http_headers": {"Authorization": "v4"},
            "auth": {"CLIENT_SECRET": "v5"},
        },
        "c": "no object",
    }
    assert secrets_of(servers) == {"v1", "v2", "v3", "v4", "v5"}


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["-c", "export GH_TOKEN=hush && npx srv"], ["-c", "export GH_TOKEN=${GH_TOKEN} && npx srv"]),
        (["-c", "npx srv --api-key hush --port 80"], ["-c", "npx srv --api-key ${API_KEY} --port 80"]),
        (["-c", "npx srv --api-key='hu sh'"], ["-c", "npx srv --api-key='${API_KEY}'"]),
        (["-c", "srv --token $TOKEN --secret-file /x"], ["-c", "srv --token $TOKEN --secret-file /x"]),
        (["{'apiKey': 'hush'}"], ["{'apiKey': '${APIKEY}'}"]),
        (['{"a": "{\\"token\\": \\"hush\\"}"}'], ['{"a": "{\\"token\\": \\"${TOKEN}\\"}"}']),
        (["https://h/mcp#access_token=hush"], ["https://h/mcp#access_token=${ACCESS_TOKEN}"]),
        (["-u", "admin:hush"], ["-u", "admin:${PASSWORD}"]),
        (["-u", "1000:1000"], ["-u", "1000:1000"]),
        (["dXNlcjpwYXNzd29yZDEyMzQ1Ng=="], ["${ARG}"]),
    ],
)
def test_a_secret_within_a_text_leaves_the_rest(args: list[str], left: list[str]) -> None:
    server, found = hidden({"command": "x", "args": args})
    assert server["args"] == left
    assert len(found) == (args != left)


def test_a_command_that_is_a_whole_line_loses_its_secret() -> None:
    server, found = hidden({"command": "npx srv --token hush"})
    assert (server["command"], found) == ("npx srv --token ${TOKEN}", ["hush"])
