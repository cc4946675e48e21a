"""Test files stand where the module stands that they test, and each exception has a reason.

A module of `LONG` code lines and more, `PACKAGE/carpool_*/FOLDER/MODULE.py`, has
`tests/PACKAGE/FOLDER/test_MODULE.py`, or a row in `ELSEWHERE` that says which test file covers it and why.
"""

import ast
import io
import tokenize
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
SOURCES: Final = {
    "broker": "broker/carpool_broker",
    "supervisor": "supervisor/carpool_supervisor",
    "protocol": "protocol/carpool_protocol",
    "client": "client/carpool",
}
LONG: Final = 60
LAYOUT: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip

ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "It holds values only: what they mean shows where a core handles them.": {
        "broker/core/model/agent_effects.py": "broker/core/test_broker.py",
        "broker/core/model/agent_events.py": "broker/core/test_broker.py",
        "broker/core/model/answers.py": "broker/core/test_broker.py",
        "broker/core/model/effects.py": "contract/test_effects.py",
        "broker/core/model/events.py": "broker/core/test_broker.py",
        "broker/core/model/scope.py": "broker/core/registry/test_request_target.py",
        "broker/core/model/session.py": "broker/core/hooks/test_hook_points.py",
        "supervisor/core/model/effects.py": "contract/test_effects.py",
        "supervisor/core/model/events.py": "supervisor/core/test_supervisor.py",
        "supervisor/core/model/pool.py": "supervisor/core/calls/test_placement.py",
        "protocol/config/schema/model.py": "broker/config/test_configuration.py",
        "protocol/link/messages.py": "protocol/link/test_codec.py",
        "client/setup/model.py": "client/setup/test_plan.py",
    },
    "It is a table, and the tests of its reader go through all rows.": {
        "protocol/config/schema/settings_cluster.py": "protocol/config/schema/test_settings.py",
        "supervisor/core/model/well_known.py": "supervisor/core/model/test_sharing.py",
        "protocol/config/schema/environment.py": "protocol/config/schema/test_expand.py",
        "protocol/config/schema/setting.py": "protocol/config/schema/test_settings.py",
        "protocol/config/schema/settings_hooks.py": "protocol/config/reading/test_hooks.py",
        "protocol/config/schema/settings_http.py": "protocol/config/schema/test_settings.py",
        "protocol/config/schema/settings_profile.py": "protocol/config/reading/test_profiles.py",
        "protocol/config/schema/settings_server.py": "protocol/config/schema/test_settings.py",
        "protocol/config/schema/value_types.py": "protocol/config/schema/test_server_kinds.py",
        "protocol/faults/kinds.py": "protocol/faults/test_fault_answers.py",
        "client/doctor/kinds.py": "client/doctor/test_diagnose.py",
        "protocol/machine/journal_shapes.py": "protocol/machine/test_journal.py",
    },
    "It prints a page, and the page is compared with what it prints.": {
        "supervisor/states_page.py": "test_states_page.py",
        "protocol/config/pages/describe.py": "protocol/config/schema/test_settings.py",
        "protocol/config/pages/formats_page.py": "test_settings_page.py",
        "protocol/config/pages/settings_page.py": "test_settings_page.py",
        "protocol/faults/errors_page.py": "test_generated_pages.py",
    },
    "It is one implementation of an interface, and the contract suite tests all of them.": {
        "client/cluster/links/nats.py": "contract/test_node_links.py",
        "client/cluster/links/zmq.py": "contract/test_node_links.py",
        "client/cluster/links/nats_access.py": "contract/test_nats_access.py",
        "protocol/link/memory.py": "contract/test_link.py",
        "protocol/link/transport.py": "contract/test_link.py",
    },
    "It is a part of the broker's core that acts on events only: its test drives the whole core.": {
        "broker/core/calls/lost_state.py": "broker/core/recovery/test_recovery.py",
        "broker/core/calls/request_state.py": "broker/core/calls/test_input_required.py",
        "broker/core/hooks/runs.py": "broker/core/hooks/test_hook_points.py",
        "broker/core/invariants.py": "broker/core/calls/test_call_table.py",
        "broker/core/recovery/supervisor_record.py": "broker/core/recovery/test_recovery.py",
        "broker/core/registry/catalog_queue.py": "broker/core/registry/test_long_catalogs.py",
        "broker/core/requests/dispatch.py": "broker/core/test_broker.py",
        "broker/core/requests/initialize.py": "broker/core/test_stateless_agents.py",
        "broker/core/requests/list_freshness.py": "broker/core/test_stateless_agents.py",
        "broker/core/requests/lists.py": "broker/core/test_broker.py",
        "broker/core/updates.py": "broker/core/registry/test_long_catalogs.py",
    },
    "It words what a neighbour finds, and is tested with it.": {
        "broker/builtin_tools/results.py": "broker/builtin_tools/test_search.py",
    },
    "It is a part of the registry, whose answers are tested as agents see them.": {
        "broker/core/registry/names.py": "broker/core/registry/test_request_target.py",
        "broker/core/registry/pool_catalog.py": "broker/core/registry/test_registry.py",
        "broker/core/registry/view.py": "broker/core/registry/test_registry.py",
        "broker/core/registry/view_builder.py": "broker/core/registry/test_registry.py",
    },
    "It is a part of the supervisor's core that acts on events only: its test drives the whole core.": {
        "supervisor/core/calls/dispatcher.py": "supervisor/core/test_supervisor.py",
        "supervisor/core/calls/queue_timeouts.py": "supervisor/core/calls/test_placement.py",
        "supervisor/core/calls/told_losses.py": "supervisor/core/calls/test_placement.py",
        "supervisor/core/pools/eras.py": "supervisor/era/test_era_detection.py",
        "supervisor/core/pools/instances.py": "supervisor/core/test_supervisor.py",
        "supervisor/core/pools/status.py": "supervisor/core/test_supervisor.py",
        "supervisor/core/list_throttle.py": "supervisor/core/test_supervisor.py",
        "supervisor/core/model/pool_table.py": "supervisor/core/test_many_pools.py",
        "supervisor/core/pools/process_room.py": "supervisor/core/pools/test_process_cap.py",
        "supervisor/core/pools/targets.py": "supervisor/core/calls/test_placement.py",
    },
    "It is a part of an era's adapter, which is tested by lines in and events out.": {
        "broker/era/envelope.py": "broker/era/test_stateless_decode.py",
        "supervisor/era/discover.py": "supervisor/era/test_stateless.py",
        "supervisor/era/envelope.py": "supervisor/era/test_stateless.py",
        "supervisor/era/initialize.py": "supervisor/era/test_handshake.py",
        "supervisor/era/input_rounds.py": "supervisor/era/test_stateless.py",
        "supervisor/era/subscriptions.py": "supervisor/era/test_stateless.py",
    },
    "It answers requests of people about a running broker, and the test asks them.": {
        "broker/admin/approval_commands.py": "broker/admin/test_control.py",
        "broker/admin/pool_commands.py": "broker/admin/test_control.py",
        "broker/admin/session_view.py": "broker/admin/test_control.py",
        "broker/admin/status_query.py": "broker/admin/test_control.py",
    },
    "It is tested with the files on disk that it reads or writes for its owner.": {
        "broker/config/blocking_io.py": "broker/config/test_watcher.py",
        "broker/config/layers.py": "broker/config/test_configuration.py",
        "broker/config/scan.py": "broker/config/test_locations.py",
        "broker/config/source_key.py": "broker/core/registry/test_name_owners.py",
        "broker/storage/approval_store.py": "broker/core/registry/test_approvals.py",
        "supervisor/knowledge/era_cache.py": "supervisor/era/test_era_detection.py",
        "protocol/config/foreign/translate.py": "protocol/config/foreign/test_formats.py",
        "protocol/config/reading/includes.py": "protocol/config/reading/test_load.py",
        "protocol/config/reading/trust.py": "protocol/config/reading/test_project.py",
    },
    "It needs a socket with an agent behind it, as its neighbours do.": {
        "broker/transport/attach_dialogue.py": "broker/transport/test_multiplexed.py",
        "broker/transport/connections.py": "broker/transport/test_agent_server.py",
        "broker/transport/detached_sessions.py": "broker/transport/test_multiplexed.py",
        "broker/transport/inbound.py": "broker/transport/test_leaving_agents.py",
    },
    "It is the shell of a process, or runs in a process of its own, and is tested as one.": {
        "client/cluster/process.py": "live/test_live_cluster.py",
        "client/cluster/other_nodes.py": "live/test_live_cluster_operators.py",
        "client/cluster/verb_requests.py": "live/test_live_cluster_operators.py",
        "broker/__main__.py": "live/test_live_start_failures.py",
        "broker/hooks/hook_child.py": "broker/hooks/test_runner.py",
        "broker/hooks/child_handle.py": "broker/hooks/test_runner.py",
        "supervisor/marks.py": "supervisor/spawn/test_spawner_client.py",
        "supervisor/processes.py": "supervisor/test_process.py",
        "supervisor/spawn/exec_child.py": "supervisor/spawn/test_spawner_client.py",
        "protocol/runtime/login_path.py": "supervisor/spawn/test_server_path.py",
        "client/bridge/process.py": "live/test_live_bridge.py",
        "client/launcher/processes.py": "client/launcher/test_launcher.py",
        "client/launcher/sandbox.py": "client/probe/test_probe.py",
        "client/launcher/sandbox_processes.py": "client/demo/test_demo.py",
        "client/launcher_lock.py": "client/launcher/test_launcher.py",
    },
    "It meets a server over the network, and is tested through a bridge to a real one.": {
        "client/bridge/cancellation.py": "live/test_live_remote.py",
        "client/bridge/error_mapping.py": "client/bridge/test_http_client.py",
        "client/bridge/error_texts.py": "client/bridge/test_http_client.py",
        "client/bridge/notifications.py": "live/test_live_bridge.py",
        "client/bridge/oauth_token.py": "live/test_live_login.py",
        "client/cli/calls.py": "live/test_live_open_calls.py",
        "client/cli/login.py": "live/test_live_login.py",
    },
    "It is a verb or serves one, and the test runs the command line.": {
        "client/check/layers.py": "client/cli/test_trust.py",
        "client/check/trust_facts.py": "client/cli/test_trust.py",
        "client/cli/completion_values.py": "client/cli/test_completion.py",
        "client/cli/call.py": "client/cli/test_main.py",
        "client/cli/check.py": "client/cli/test_trust.py",
        "client/cli/daemon.py": "client/launcher/test_launcher.py",
        "client/cli/doctor_facts.py": "client/cli/test_doctor.py",
        "client/cli/doctor_repairs.py": "client/cli/test_doctor.py",
        "client/cli/status.py": "client/cli/test_main.py",
        "client/cli/tools.py": "client/cli/test_main.py",
    },
    "It is a part of the core of the HTTP door, which is tested by requests in and effects out.": {
        "client/http/core/access.py": "client/http/core/test_core.py",
        "client/http/core/body.py": "client/http/core/test_core.py",
        "client/http/core/effects.py": "client/http/core/test_core.py",
        "client/http/core/event_streams.py": "client/http/core/test_sessions.py",
        "client/http/core/own_requests.py": "client/http/core/test_core.py",
        "client/http/core/pages.py": "client/http/core/test_core.py",
        "client/http/core/routing.py": "client/http/core/test_core.py",
        "client/http/core/streams.py": "client/http/core/test_core.py",
        "client/http/core/tool_calls.py": "client/http/core/test_core.py",
    },
    "It is a part of an interface for programs, which is tested as programs use it.": {
        "client/adapters/arguments.py": "client/adapters/test_schema.py",
        "client/adapters/read_tools.py": "client/adapters/test_tools.py",
        "client/adapters/strict_schema.py": "client/adapters/test_schema.py",
        "client/api/callbacks.py": "client/api/test_session.py",
        "client/api/client.py": "client/api/test_session.py",
        "client/api/connect.py": "client/api/test_session.py",
        "client/api/results.py": "client/api/test_session.py",
        "client/shim/kept_lines.py": "client/shim/test_resume.py",
        "client/shim/refusal.py": "client/shim/test_shim.py",
    },
    "It is a part of one program, and the test runs that program or its parts together.": {
        "client/bench/agents.py": "client/bench/test_bench.py",
        "client/bench/arms.py": "client/bench/test_bench.py",
        "client/bench/attach.py": "client/bench/test_bench.py",
        "client/bench/command.py": "client/bench/test_bench.py",
        "client/bench/report.py": "client/bench/test_bench.py",
        "client/bench/scenarios.py": "client/bench/test_bench.py",
        "client/bench/spawn.py": "client/bench/test_bench.py",
        "client/bench/work.py": "client/bench/test_bench.py",
        "client/demo/agent.py": "live/test_demo_runs.py",
        "client/demo/command.py": "client/demo/test_demo.py",
        "client/demo/crowd.py": "client/demo/test_demo.py",
        "client/demo/echo_server.py": "live/test_demo_runs.py",
        "client/demo/figures.py": "client/demo/test_demo.py",
        "client/demo/questions.py": "client/demo/test_demo.py",
        "client/demo/report.py": "client/demo/test_demo.py",
        "client/demo/run.py": "live/test_demo_runs.py",
        "client/probe/run.py": "client/probe/test_probe.py",
        "client/setup/carpool_files.py": "client/cli/test_setup.py",
        "client/setup/client_files.py": "client/setup/test_plan.py",
        "client/setup/convert_server.py": "client/setup/test_plan.py",
        "client/setup/diff.py": "client/setup/test_plan.py",
        "client/setup/file_io.py": "client/cli/test_setup.py",
        "client/setup/inventory.py": "client/cli/test_setup.py",
        "client/setup/other_programs.py": "client/setup/test_permission_rules.py",
        "client/setup/profiles.py": "client/setup/test_plan.py",
        "client/setup/run_record.py": "client/cli/test_setup.py",
        "client/setup/target_file.py": "client/setup/test_plan.py",
        "client/setup/toml.py": "client/setup/test_plan.py",
        "client/setup/undo.py": "client/setup/test_plan.py",
        "client/setup/undo_run.py": "client/cli/test_setup.py",
    },
}


def code_lines(text: str) -> int:
    """Lines without blanks, comments and docstrings."""
    words: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for each in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                words.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in LAYOUT)
    return len(set(chain.from_iterable(spans)) - words)


@cache
def long_modules() -> frozenset[str]:
    """All modules that need a test file, as `PACKAGE/FOLDER/MODULE.py`."""
    return frozenset(
        f"{package}/{path.relative_to(ROOT / source)}"
        for package, source in SOURCES.items()
        for path in (ROOT / source).rglob("*.py")
        if code_lines(path.read_text(encoding="utf-8")) >= LONG
    )


def own_test(module: str) -> Path:
    folder, _, name = module.rpartition("/")
    return ROOT / "tests" / folder / f"test_{name}"


ROWS: Final = [row for rows in ELSEWHERE.values() for row in rows.items()]


def test_each_long_module_has_a_test_file_of_its_name_or_a_row() -> None:
    elsewhere = dict(ROWS)
    assert sorted(it for it in long_modules() if not own_test(it).exists() and it not in elsewhere) == []


def test_no_row_is_of_a_module_that_needs_none() -> None:
    """Its module is gone or short now, or has a test file of its name."""
    modules = [module for module, _ in ROWS]
    assert sorted(it for it in modules if it not in long_modules() or own_test(it).exists()) == []
    assert len(modules) == len(set(modules))


def test_each_row_names_a_test_file_that_is_there() -> None:
    assert sorted(test for _, test in ROWS if not (ROOT / "tests" / test).is_file()) == []


def test_lines_of_code_are_counted_without_words() -> None:
    text = '"""A.\n\nB.\n"""\n\nx = 1  # c\n# d\n"""E."""\n\n\n'
    text += 'def f() -> int:\n    """G."""\n    return (\n        x\n    )\n'
    assert code_lines(text) == 5
