"""The verb `tools`: the tools of agents and their cost for a model; for people, programs and model APIs.

Owns the choice of tools and their form, and the list of servers whose tools are missing; the forms of model
APIs are `adapters`'. Owns the estimate of tokens: a model reads name, description and input schema of each
tool, as JSON, and four bytes of that are about one token. Over 501 tools of 23 servers there were 4.5 bytes
to a token with o200k_base, for single servers 4.1 to 5.2. Every model has its own tokenizer, and the
available ones bring tables of megabytes or download them: an estimate that is named as one is enough to see
which tools are expensive. Refuses to know where the facts come from.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

from carpool.cli.main import (
    broker_request,
    broker_request_or_fail,
    environment,
    json_option,
    open_session,
    profile_option,
    refused,
    workspace_option,
)
from carpool.cluster.requests import nodes_of_servers
from carpool.control.control_client import AnsweredError, ControlClient
from carpool.control.place import runtime_place
from carpool.terminal import display
from carpool.terminal.verb_output import fail, print_json
from carpool_protocol.config.text.problems import no_such_server

BYTES_PER_TOKEN: Final = 4

Facts = dict[str, Any]


def tokens_of(tool: Facts) -> int:
    """Return the estimated tokens of one row of `carpool tools --json`."""
    definition: Facts = tool.get("definition") or {}
    read = {
        "name": tool["name"],
        "description": definition.get("description", tool.get("description", "")),
        "inputSchema": definition.get("inputSchema", {}),
    }
    text = json.dumps(read, ensure_ascii=False, separators=(",", ":"))
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def costs_page(tools: Iterable[Facts]) -> str:
    """Return the costs of tools, of servers and of all together for people, the most expensive first."""
    costs = sorted(
        ((tokens_of(tool), tool["name"], tool["server"]) for tool in tools), key=lambda it: (-it[0], it[1])
    )
    servers: dict[str, list[int]] = {}
    for tokens, _, server in costs:
        servers.setdefault(server, []).append(tokens)
    by_server = sorted(servers.items(), key=lambda it: (-sum(it[1]), it[0]))
    right = {"TOKENS", "TOOLS"}
    parts = [
        display.columns(["TOKENS", "TOOL", "SERVER"], costs, right=right),
        display.columns(
            ["TOKENS", "TOOLS", "SERVER"],
            [[sum(its), len(its), server] for server, its in by_server],
            right=right,
        ),
        f"{sum(tokens for tokens, _, _ in costs)} tokens for {len(costs)} tools, estimated at "
        f"{BYTES_PER_TOKEN} bytes each; a profile with show: search shows three tools instead",
    ]
    return "\n\n".join(part for part in parts if part)


_FORMATS = ("openai", "openai-responses", "anthropic")
_AS_WISHED = frozenset({"serving", "cold", "disabled"})
"""States in which a server without tools is no fault: it offers none, or no agent wants it."""


@click.command()
@click.argument("name", required=False)
@click.option("--server", default="", metavar="NAME", help="Only tools of this server.")
@click.option("--tag", default="", help="Only tools of servers with this tag.")
@click.option("--tokens", is_flag=True, help="What they cost a model that is shown them, the most first.")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="The list that a model API takes as `tools`, as JSON (`carpool docs function-calling`).",
)
@profile_option
@workspace_option
@json_option
def tools(
    name: str | None,
    tag: str,
    form: str | None,
    *,
    server: str,
    tokens: bool,
    profile: str,
    workspace: str,
    as_json: bool,
) -> None:
    """List the tools agents see, or explain one NAME in any spelling. Starts carpool when it does not run."""
    plain = not as_json and not form
    with open_session(control=True, start=True, profile=profile, workspace=workspace) as door:
        try:
            answer = broker_request(door, "carpool/tools", {"name": name} if name else {}, timeout_s=60)
        except AnsweredError as error:
            missing = _not_listed(door, tag, server) if plain else ""
            refused(error, missing, name=name or "", workspace=workspace)
        missing = _not_listed(door, tag, server) if plain and not name else ""
        if server:
            _refuse_unknown(door, server)
        none = "" if answer.get("tools") or not plain else _no_tools(door, profile, workspace)
    found = _chosen(answer, tag, server)
    problem = answer.get("error") or (
        f"no tool is called {name!r}; `carpool tools` lists all" if name else ""
    )
    if form:
        print_json(_in_form(found, form))
    elif as_json:
        print_json([{**tool, "tokens": tokens_of(tool)} for tool in found] if tokens else found)
    elif found:
        click.echo(_page(found, tokens=tokens, explained=bool(name)))
    if not found and (name or answer.get("error")):
        from carpool.check.file_faults import file_faults_here  # late: a list that is found reads no file

        fail("\n".join(filter(None, (_sentence(problem), file_faults_here(workspace)))))
    if not found and plain:
        click.echo(display.wrapped(_why_none(tag, server) or none))
    if missing:
        click.echo(display.wrapped(missing), err=True)


def _chosen(answer: Facts, tag: str, server: str) -> list[Facts]:
    return [
        tool
        for tool in answer.get("tools") or []
        if (not tag or tag in tool["tags"]) and server in ("", tool["server"])
    ]


def _page(found: list[Facts], *, tokens: bool, explained: bool) -> str:
    if tokens:
        return costs_page(found)
    if explained:
        return "\n\n".join(_explained(tool) for tool in found)
    nodes = nodes_of_servers(runtime_place().directory)
    rows = [
        [tool["name"], _with_nodes(tool["server"], nodes), display.one_line(tool["description"])]
        for tool in found
    ]
    return display.columns(["NAME", "SERVER", "DESCRIPTION"], rows)


def _with_nodes(server: str, nodes: Mapping[str, list[str]]) -> str:
    """Return the server, and the nodes that offer it if it is not this one's."""
    return f"{server} ({', '.join(nodes[server])})" if server in nodes else server


def _why_none(tag: str, server: str) -> str:
    if server:
        return f"no tools: {display.printable(server)} offers none here; see `carpool status`"
    if tag:
        return f"no tools: no server that offers any has the tag {display.printable(tag)}"
    return ""


def _no_tools(client: ControlClient, profile: str, workspace: str) -> str:
    """Return why there is no tool at all, and what to do."""
    from carpool.check.file_faults import file_faults_here  # late: few users have no tool
    from carpool.cli.first_run import no_servers

    if faults := file_faults_here(workspace):
        return f"no tools: {faults}"
    servers: list[Facts] = broker_request_or_fail(client, "carpool/servers", {}).get("servers") or []
    if not servers and not profile:
        said = no_servers(environment(), runtime_place().directory)
        return f"no tools: {said or 'servers of other nodes are being read; try again in a moment'}"
    more = ", or the profile permits none" if profile else ""
    return f"no tools: no server has told any{more}; `carpool status` says more"


def _refuse_unknown(client: ControlClient, server: str) -> None:
    """End the verb if this session sees no server of this name."""
    known = [each["name"] for each in broker_request_or_fail(client, "carpool/servers", {})["servers"]]
    if server not in known:
        fail(no_such_server(server, known, "here"))


def _not_listed(client: ControlClient, tag: str, server: str) -> str:
    """Return a line about servers that have no tools because of their state; empty if there are none.

    `tag`, `server`: only servers with this tag or this name.
    """
    servers: list[Facts] = broker_request_or_fail(client, "carpool/servers", {}).get("servers") or []
    missing = [
        f"{each['name']} ({each['state']})"
        for each in servers
        if not each["tools"]
        and each["state"] not in _AS_WISHED
        and (not tag or tag in each["tags"])
        and server in ("", each["name"])
    ]
    return display.printable(f"not listed: {', '.join(missing)}; see `carpool status`") if missing else ""


def _in_form(found: list[Facts], form: str) -> list[Facts]:
    from carpool.adapters import Toolbox  # late: no other verb of these needs it

    toolbox = Toolbox(
        {**(tool.get("definition") or {}), "name": tool["name"], "description": tool["description"]}
        for tool in found
    )
    match form:
        case "openai":
            return toolbox.openai()
        case "openai-responses":
            return toolbox.openai_responses()
        case _:
            return toolbox.anthropic()


def _explained(tool: Facts) -> str:
    lines = [
        f"{display.printable(tool['name'])}",
        f"  server   {display.printable(tool['server'])}",
        f"  tool     {display.printable(tool['tool'])}  (the server's own name)",
        f"  also as  {display.printable(', '.join(tool['aliases']) or '-')}",
    ]
    text = display.printable(tool["description"].strip(), lines=True)
    return "\n".join([*lines, *(f"  {line}" for line in text.splitlines())])


def _sentence(problem: object) -> str:
    if isinstance(problem, dict):
        return str(problem.get("message") or problem.get("text") or problem)
    return str(problem)
