# mypy: ignore-errors
"""A server of the stateless era that runs a tool as a task (SEP-2663), until another call says it is done.

`work` begins a task for who has declared that it knows of tasks; `finish` ends it, `want` has it want a name,
`seen` tells what was said about it and under which id. Standard library only.
"""

import json
import sys

from speak import answer, lines, send, tool

PRE = "io.modelcontextprotocol/"
TASKS = PRE + "tasks"
tasks = {}
"""By name."""
cancelled = []
listens = {}
"""The filter of each, by its id."""
count = 0


def done(request, result, kind="complete"):
    answer(request, {"resultType": kind, **result})


def refuse(request, code, message, data=None):
    error = {"code": code, "message": message}
    send({"id": request["id"], "error": error | ({"data": data} if data else {})})


def text(said):
    return {"content": [{"type": "text", "text": said}]}


def knows(request):
    capabilities = request["params"]["_meta"][PRE + "clientCapabilities"]
    return TASKS in capabilities.get("extensions", {})


def change(task, **members):
    task.update(members)
    for listen, wanted in listens.items():
        if task["taskId"] in wanted.get("taskIds", []):
            params = {**task, "_meta": {PRE + "subscriptionId": listen}}
            send({"method": "notifications/tasks", "params": params})


def begin(name, ttl_ms):
    global count
    count += 1
    at = "2026-07-28T00:00:00Z"
    task = {
        "taskId": f"theirs-{count}",
        "status": "working",
        "createdAt": at,
        "lastUpdatedAt": at,
        "ttlMs": ttl_ms,
    }
    tasks[name] = task
    return task


def call(request):
    name, given = request["params"]["name"], request["params"].get("arguments", {})
    if name == "work" and not knows(request):
        needs = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        refuse(request, -32021, "This tool is a task.", needs)
    elif name == "work":
        done(request, begin(given["name"], given.get("ttlMs", 600_000)), "task")
    elif name == "finish":
        change(tasks[given["name"]], status="completed", result=text(f"{given['name']} is done"))
        done(request, text("finished"))
    elif name == "want":
        params = {"mode": "form", "message": given["name"], "requestedSchema": {"type": "object"}}
        wants = {"who": {"method": "elicitation/create", "params": params}}
        change(tasks[given["name"]], status="input_required", inputRequests=wants)
        done(request, text("wanted"))
    else:
        seen = {"cancelled": cancelled, "tasks": [each["taskId"] for each in tasks.values()]}
        seen["listens"] = [wanted.get("taskIds", []) for wanted in listens.values()]
        done(request, text(json.dumps(seen)))


def about(request, verb):
    if not knows(request):
        refuse(
            request, -32021, "Tasks are not declared.", {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        )
        return
    params = request["params"]
    task = next((each for each in tasks.values() if each["taskId"] == params["taskId"]), None)
    if task is None:
        refuse(request, -32602, "No such task.")
    elif verb == "get":
        done(request, task)
    elif verb == "update":
        task.pop("inputRequests", None)
        said = params["inputResponses"]["who"]["content"]["name"]
        change(task, status="completed", result=text(f"by {said}"))
        done(request, {})
    else:
        cancelled.append(task["taskId"])
        change(task, status="cancelled")
        done(request, {})


for request in lines():
    method, params = request["method"], request.get("params", {})
    if method == "server/discover":
        capabilities = {"tools": {}, "extensions": {TASKS: {}}}
        found = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
        done(request, {**found, "ttlMs": 60_000, "cacheScope": "public"})
    elif method == "tools/list":
        offered = [
            tool(name, properties={"name": {"type": "string"}}) for name in ("work", "finish", "want", "seen")
        ]
        done(request, {"tools": offered, "ttlMs": 60_000, "cacheScope": "public"})
    elif method == "tools/call":
        call(request)
    elif method.startswith("tasks/"):
        about(request, method.removeprefix("tasks/"))
    elif method == "subscriptions/listen":
        listens[request["id"]] = params["notifications"]
        meta = {PRE + "subscriptionId": request["id"]}
        said = {"_meta": meta, "notifications": params["notifications"]}
        send({"method": "notifications/subscriptions/acknowledged", "params": said})
    elif method == "notifications/cancelled":
        listens.pop(params["requestId"], None)
    elif "id" in request:
        refuse(request, -32601, "No such method.")
sys.exit(0)
