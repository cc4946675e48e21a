// An agent on the official TypeScript SDK: the same list of steps, the same report as agent.py. A step may also have
// `cancel_at` (cancel once this file is there) and `patience_ms` (the bound of `until`).
//
// `agent.mjs FILE`, with the SDK in the node_modules beside the interpreter's folder (.venv/peers).

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.CARPOOL_PEERS + "/");
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { SSEClientTransport } = require("@modelcontextprotocol/sdk/client/sse.js");
const types = require("@modelcontextprotocol/sdk/types.js");

const PATIENCE_MS = 20000;
const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
let step = fresh();

function fresh() {
  return { asks: [], progress: [], notices: [] };
}

function note(method, params = {}) {
  const { _meta, ...rest } = params;
  step.asks.push([method, _meta && Object.keys(_meta).length ? { ...rest, _meta } : rest]);
}

const capabilities = { sampling: { tools: {} }, elicitation: { form: {}, url: {} } };
if (plan.roots) capabilities.roots = {};
const client = new Client({ name: plan.name, version: "1" }, { capabilities });

client.setRequestHandler(types.CreateMessageRequestSchema, async ({ params }) => {
  note("sampling/createMessage", params);
  const text = `${plan.name} on ${params.messages[0].content.text}`;
  return { role: "assistant", content: { type: "text", text }, model: plan.name };
});
client.setRequestHandler(types.ElicitRequestSchema, async ({ params }) => {
  note("elicitation/create", params);
  if (params.mode === "url") return { action: "accept" };
  const said = params.requestedSchema.required.map((name) => [name, `${plan.name} on ${params.message}`]);
  return { action: "accept", content: Object.fromEntries(said) };
});
if (plan.roots) {
  client.setRequestHandler(types.ListRootsRequestSchema, async () => {
    note("roots/list");
    return { roots: plan.roots.map((uri) => ({ uri })) };
  });
}
client.fallbackNotificationHandler = async ({ method, params }) => {
  step.notices.push([method, params ?? {}]);
};

async function take(todo) {
  step = fresh();
  if (todo.after) {
    // The steps before are done; whoever wrote the plan makes this file when the next shall begin.
    writeFileSync(todo.after + ".reached", "");
    while (!existsSync(todo.after)) await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const giveUp = new AbortController();
  const options = { signal: giveUp.signal };
  if (todo.progress) {
    options.onprogress = ({ progress, total, message }) => {
      step.progress.push([progress, total ?? null, message ?? null]);
      if (step.progress.length >= (todo.cancel_after ?? Infinity)) giveUp.abort("enough");
    };
  }
  const watch = todo.cancel_at && setInterval(() => existsSync(todo.cancel_at) && giveUp.abort("asked"), 10);
  const { method, params = {} } = todo;
  const methods = {
    "tools/list": () => client.listTools({}, options),
    "tools/call": () => client.callTool(params, undefined, options),
    "prompts/list": () => client.listPrompts({}, options),
    "prompts/get": () => client.getPrompt(params, options),
    "resources/list": () => client.listResources({}, options),
    "resources/templates/list": () => client.listResourceTemplates({}, options),
    "resources/read": () => client.readResource(params, options),
    "resources/subscribe": () => client.subscribeResource(params, options),
    "resources/unsubscribe": () => client.unsubscribeResource(params, options),
    "completion/complete": () => client.complete(params, options),
    "logging/setLevel": () => client.setLoggingLevel(params.level, options),
    ping: () => client.ping(options),
  };
  try {
    step.answer = await methods[method]();
  } catch (error) {
    if (giveUp.signal.aborted) step.cancelled = true;
    else if (error instanceof types.McpError) {
      step.error = { code: error.code, message: error.message.replace(/^MCP error -?\d+: /, "") };
      if (error.data !== undefined) step.error.data = error.data;
    } else step.error = { raised: String(error) };
  }
  clearInterval(watch);
  const until = Date.now() + (todo.patience_ms ?? PATIENCE_MS);
  for (const [name, count] of Object.entries(todo.until ?? {})) {
    while (step.notices.filter(([each]) => each === name).length < count && Date.now() < until) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
  return step;
}

const { command, args, env } = plan;
const Way = plan.transport === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
const transport = plan.url
  ? new Way(new URL(plan.url))
  : new StdioClientTransport({ command, args, env, stderr: "inherit" });
await client.connect(transport);
const init = { capabilities: client.getServerCapabilities(), instructions: client.getInstructions() };
const steps = [];
for (const todo of plan.steps) steps.push(await take(todo));
process.stdout.write(JSON.stringify({ init, steps }) + "\n");
if (plan.url && plan.transport !== "sse") await transport.terminateSession();
await client.close();
