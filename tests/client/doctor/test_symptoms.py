"""Known faults of servers are recognised by what npm, pip, uv, docker and servers write."""

import pytest

from carpool.doctor.symptoms import Symptom, stdout_noise, symptom
from carpool_protocol.wire.jsonrpc import NOT_A_MESSAGE


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("npm warn EBADENGINE   required: { node: '>=22.0.0' },", "version-wrong"),
        ('error x@1.0.0: The engine "node" is incompatible with this module.', "version-wrong"),
        ("This server requires Node.js 20 or newer", "version-wrong"),
        ("Node.js v18 or higher is needed", "version-wrong"),
        ("ERROR: Package 'x' requires a different Python: 3.10.13 not in '>=3.11'", "version-wrong"),
        ("error: No interpreter found for Python >=3.14 in managed installations", "version-wrong"),
        ("npm error 404  'nope-x@*' is not in this registry.", "package-not-found"),
        ("npm ERR! 404 Not Found - GET https://registry.npmjs.org/nope-x - Not found", "package-not-found"),
        ("Because nope-x was not found in the package registry and you require it", "package-not-found"),
        ("ERROR: No matching distribution found for nope-x", "package-not-found"),
        ("docker: Error response: pull access denied for nope/x, repository", "package-not-found"),
        ("Error: ACME_TOKEN environment variable is required", ""),
        ("Connecting to node 3 of the cluster", ""),
        ("404 Not Found", ""),
    ],
)
def test_a_line_of_stderr_tells_the_fault(line: str, kind: str) -> None:
    found = symptom("ended with exit code 1 before it had greeted", ["starting", line])
    assert (found.kind if found is not None else "") == kind
    assert found is None or found.line in line


def test_a_line_on_stdout_is_noise_and_a_header_of_another_framing_is_not() -> None:
    error = f"{NOT_A_MESSAGE}: the line is not JSON"
    assert stdout_noise(error) == "the line is not JSON"
    assert symptom(error, ["npm error 404 Not Found - x"]) == Symptom("stdout-noise", "the line is not JSON")
    assert not stdout_noise(f"{NOT_A_MESSAGE}: the line is a Content-Length header")
    assert not stdout_noise("ended with exit code 1")


def test_of_the_lines_of_npm_the_one_with_the_version_is_shown() -> None:
    lines = ("npm warn EBADENGINE Unsupported engine {", "npm warn EBADENGINE   required: { node: '>=22' },")
    found = symptom("ended with exit code 1", lines)
    assert found == Symptom("version-wrong", "EBADENGINE   required: { node: '>=22' },")
