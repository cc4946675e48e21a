// The script of the web page. It draws what the door's stream says, and asks the door for more.
//
// Texts of servers and agents become text nodes only: no string is ever read as HTML (the page's policy forbids it
// as well). Key and token are sent as a header, so no other page can use them. The key, which ends with its door, stays
// in this tab's session storage. A token stays in memory, and is sent only to a door that has proved that it knows it.
"use strict";

const KEY = "carpool.page-key";
const MAX_SHOWN = 500;
const RETRY_MS = [300, 1000, 2000, 5000];
const SILENT_MS = 20000;
const PARTS = [
  ["waiting_s", "waiting", "for its turn in the session"],
  ["hooks_s", "hooks", "with hooks"],
  ["queue_s", "queue", "for an instance"],
  ["server_s", "server", "at the server"],
  ["back_s", "back", "way back, carpool’s own part"],
];
const GOOD_STATES = new Set(["serving"]);
const BAD_STATES = new Set(["given_up", "breaker_open", "misconfigured", "backing_off"]);
const WARN_STATES = new Set(["starting", "half_open", "draining", "stopped", "paused", "untrusted", "away"]);
const GOOD_OUTCOMES = new Set(["ok", "task", "kept", "cancelled"]);
const NOT_OURS = {
  error: "The server answered with an error of its own. Carpool passed it on unchanged.",
  tool_error: "The tool itself says that it failed. Carpool passed its answer on unchanged.",
};

let state = null;
let errors = {};
let right = "";
let stream = null;
let token = "";
let isLive = false;
let heldRecent = null;
const sorted = {};

// --- elements ---------------------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);

function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  for (const child of children) made.append(typeof child === "object" ? child : text(child));
  return made;
}

// Characters that change the reading direction, or that no browser shows, are spelled out: a name must read as it is.
// Unicode says of each if it is seen; only U+2800 is a pattern without dots. Ends of lines and tabs stay.
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu;

function shown(value) {
  return String(value ?? "").replace(UNSEEN, (char) => {
    const code = char.codePointAt(0).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

const text = (value) => document.createTextNode(shown(value));

function put(place, ...children) {
  place.replaceChildren(...children);
}

// Sets a text only if it has changed, so that a screen reader is told of changes alone.
function say(place, value) {
  const wanted = shown(value);
  if (place.textContent !== wanted) place.textContent = wanted;
}

// --- numbers ----------------------------------------------------------------------------------------------

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${Math.round(value / 3600)} h`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  let left = Math.abs(value);
  while (left >= 1000 && at < units.length - 1) [left, at] = [left / 1000, at + 1];
  return `${value < 0 ? "-" : ""}${left >= 100 || at === 0 ? Math.round(left) : left.toFixed(1)} ${units[at]}`;
}

const clock = (unix) => new Date(unix * 1000).toLocaleTimeString(undefined, { hour12: false });

// --- requests ---------------------------------------------------------------------------------------------

const secret = () => token || sessionStorage.getItem(KEY) || "";

const authorized = () => (secret() ? { Authorization: `Bearer ${secret()}` } : {});

function headers() {
  // While no stream is open, another program may listen where the door was.
  if (token && !isLive) throw new Error("no connection; the token is not sent before there is one");
  return authorized();
}

async function ask(verb, query = {}) {
  const about = new URLSearchParams(query).toString();
  return answerOf(await fetch(`/operator/${verb}${about ? "?" + about : ""}`, options({})));
}

async function act(verb, body) {
  return answerOf(await fetch(`/operator/${verb}`, options(posted(body))));
}

const posted = (body) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
const plain = (more) => ({ credentials: "omit", cache: "no-store", redirect: "error", ...more });

function options(more) {
  return plain({ ...more, headers: { ...headers(), ...(more.headers || {}) } });
}

async function answerOf(reply) {
  const body = await reply.text();
  let found = null;
  try {
    found = JSON.parse(body);
  } catch {
    throw new Error(body.slice(0, 500) || `status ${reply.status}`);
  }
  if (!reply.ok) throw new Error(found?.error?.message || `status ${reply.status}`);
  return found;
}

// --- the proof of the door --------------------------------------------------------------------------------

class NotProved extends Error {}

const hex = (data) => [...new Uint8Array(data)].map((each) => each.toString(16).padStart(2, "0")).join("");

// Has the door prove that it knows the token, without telling it the token (core/token_proofs.py). Browsers can compute
// that only at an address of this machine or over https. Elsewhere the network reads the token in any case.
async function prove(signal) {
  if (!crypto.subtle) return;
  const bytes = (words) => new TextEncoder().encode(words);
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes(token)));
  const hint = hex(await crypto.subtle.digest("SHA-256", new Uint8Array([...bytes("carpool hint"), ...hash])));
  const nonce = hex(crypto.getRandomValues(new Uint8Array(32)));
  const reply = await fetch("/operator/proof", plain({ ...posted({ hint, nonce }), signal }));
  if (reply.status >= 500) throw new Error(`status ${reply.status}`);
  const found = await answerOf(reply).catch((error) => { throw new NotProved(error.message); });
  const digits = String(found.proof).match(/[0-9a-f]{2}/g) || [];
  const key = await crypto.subtle.importKey("raw", hash, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
  const proof = new Uint8Array(digits.map((each) => parseInt(each, 16)));
  if (!(await crypto.subtle.verify("HMAC", key, proof, bytes(`carpool proof${nonce}`)))) {
    throw new NotProved("another program listens here, which does not know the token. The token was not sent.");
  }
}

let saidTimer = 0;
function tell(sentence) {
  say($("said"), sentence);
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => say($("said"), ""), 8000);
}

// --- the stream -------------------------------------------------------------------------------------------

function link(name, words) {
  $("link-state").dataset.state = name;
  say($("link-state"), words);
}

async function watch() {
  stream?.abort();
  const mine = (stream = new AbortController());
  for (let tries = 0; !mine.signal.aborted; tries++) {
    isLive = false;
    try {
      if (token) await prove(mine.signal);
      if (mine.signal.aborted) return;
      const reply = await fetch("/operator/live", plain({ signal: mine.signal, headers: authorized() }));
      if (reply.status === 401 || reply.status === 403) {
        const why = await answerOf(reply).catch((error) => error.message);
        if (!mine.signal.aborted) login(reply.status, why);
        return;
      }
      if (!reply.ok) throw new Error(await answerOf(reply).catch((error) => error.message));
      login(0, "");
      isLive = true;
      tries = 0;
      await readEvents(reply.body, mine);
    } catch (error) {
      if (mine.signal.aborted) return;
      isLive = false;
      if (error instanceof NotProved) {
        login(401, error.message);
        token = "";
        return;
      }
      link("lost", "no connection");
    }
    await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
  }
}

async function readEvents(body, mine) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const silent = setTimeout(() => reader.cancel().catch(() => {}), SILENT_MS);
    const { value, done } = await reader.read();
    clearTimeout(silent);
    if (done) throw new Error("the stream has ended");
    if (mine.signal.aborted) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    const events = parts.map(eventOf).filter((event) => event.data);
    // Only the newest state is drawn: a page that was slow does not draw the ones that it has missed.
    const last = events.map((event) => event.name).lastIndexOf("state");
    events.forEach((event, at) => {
      if (event.name !== "state" || at === last) received(event);
    });
  }
}

function eventOf(part) {
  const event = { name: "message", data: "" };
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    else if (line.startsWith("data: ")) event.data += line.slice(6);
  }
  return event;
}

function received(event) {
  if (event.name === "hello") {
    right = JSON.parse(event.data).right;
    const words = { full: "may act", read: "may only read" }[right] || "";
    $("right").hidden = !words;
    say($("right"), words);
    $("forget").hidden = !secret();
    $("enter").hidden = right === "full";
  } else if (event.name === "away") {
    link("away", "broker away");
    $("sentence").dataset.well = "no";
    say($("sentence"), "the broker does not answer; it may be starting again");
  } else if (event.name === "state") {
    state = JSON.parse(event.data);
    link("live", "live");
    draw();
  }
}

function login(status, why) {
  $("login").hidden = !status;
  $("tabs").hidden = $("main").hidden = Boolean(status);
  if (!status) return;
  link("lost", "not let in");
  const known = Boolean(secret());
  say($("sentence"), known ? "the key is not accepted (any more)" : "you need the key to see this page");
  say($("login-text"), `${known ? "The key changes at each start of carpool. " : ""}Run \`carpool web\` on the machine where carpool runs and open the address that it prints, or give that address here. The door says: ${why}`);
  $("key").focus();
}

// --- tables -----------------------------------------------------------------------------------------------

// Rows keep their elements from one state to the next, so focus and selection stay where they are.
function table(place, columns, rows, { name, empty, left = 0, failed = null }) {
  let kept = place.tableKept;
  if (!kept || kept.columns !== columns.map((each) => each.title).join("|")) {
    const head = el("tr", {}, ...columns.map((column, at) => headCell(column, at, name)));
    const body = el("tbody");
    const note = el("p", { class: "empty", hidden: true });
    put(place, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), body), note));
    kept = place.tableKept = { columns: columns.map((each) => each.title).join("|"), head, body, note, rows: new Map() };
  }
  const order = sorted[name];
  if (order) rows = [...rows].sort((a, b) => compare(a.values[order.at], b.values[order.at]) * (order.down ? -1 : 1));
  [...kept.head.children].forEach((cell, at) => {
    cell.setAttribute("aria-sort", order?.at === at ? (order.down ? "descending" : "ascending") : "none");
  });
  const more = Math.max(0, rows.length - MAX_SHOWN) + left;
  const wanted = new Set();
  let before = null;
  for (const row of rows.slice(0, MAX_SHOWN)) {
    wanted.add(row.key);
    let line = kept.rows.get(row.key);
    if (!line) {
      line = el("tr", {}, ...columns.map((column) => el("td", { class: column.class || (column.number ? "number" : "") })));
      kept.rows.set(row.key, line);
    }
    line.className = failed && failed(row) ? "failed" : "";
    columns.forEach((column, at) => fill(line.children[at], row.cells[at]));
    const place_ = before ? before.nextSibling : kept.body.firstChild;
    if (place_ !== line) kept.body.insertBefore(line, place_);
    before = line;
  }
  for (const [key, line] of kept.rows) {
    if (!wanted.has(key)) {
      line.remove();
      kept.rows.delete(key);
    }
  }
  kept.note.hidden = rows.length > 0 && !more;
  say(kept.note, rows.length ? `${more} more are not shown` : empty);
}

// A cell is a text, or {made, mark}: an element that is made anew only where the mark has changed.
function fill(cell, value) {
  if (value && typeof value === "object") {
    if (cell.mark !== value.mark) {
      cell.mark = value.mark;
      put(cell, value.made());
    }
  } else {
    cell.mark = undefined;
    if (cell.textContent !== shown(value)) {
      cell.textContent = shown(value);
      cell.title = cell.textContent;
    }
  }
}

function headCell(column, at, name) {
  const head = el("th", { scope: "col", class: column.number ? "number" : "" });
  if (column.unsorted) head.append(text(column.title));
  else head.append(el("button", { type: "button", onclick: () => order(name, at, column.number) }, column.title));
  return head;
}

function order(name, at, number) {
  const now = sorted[name];
  sorted[name] = now?.at === at ? { at, down: !now.down } : { at, down: Boolean(number) };
  draw();
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}

function filtered(name, rows, words) {
  const wanted = document.querySelector(`[data-filter="${name}"]`)?.value.trim().toLowerCase();
  return wanted ? rows.filter((row) => words(row).toLowerCase().includes(wanted)) : rows;
}

const wordsOf = (row) => row.words ?? row.values.join(" ");

function pill(words) {
  const kind = GOOD_STATES.has(words) ? " good" : BAD_STATES.has(words) ? " bad" : WARN_STATES.has(words) ? " warn" : "";
  return { mark: words, made: () => el("span", { class: `state${kind}` }, words) };
}

const opens = (words, open) => ({ mark: words, made: () => el("button", { type: "button", class: "link", onclick: open }, words) });

// --- acts -------------------------------------------------------------------------------------------------

function actButton(words, verb, body, question, about) {
  const may = right === "full";
  return el("button", {
    type: "button",
    class: "small",
    disabled: !may,
    title: may ? question : "This needs the address that `carpool web` prints, or a full operator’s token.",
    "aria-label": `${words} ${shown(about)}`,
    onclick: () => sure(question, async () => {
      try {
        const found = await act(verb, body);
        const rows = found.results || [];
        tell(rows.map((row) => `${row.server}: ${row.text}`).join("; ") || "done");
      } catch (error) {
        tell(error.message);
      }
    }),
  }, words);
}

function serverActs(name, server) {
  const paused = server?.paused;
  const stopped = server?.state === "stopped";
  return {
    mark: `${right} ${paused} ${stopped}`,
    made: () => el("span", { class: "acts" },
      actButton("Restart", "restart", { servers: [name] }, `Restart ${name}?`, name),
      paused
        ? actButton("Resume", "resume", { servers: [name] }, `Let waiting calls of ${name} run?`, name)
        : actButton("Pause", "pause", { servers: [name] }, `Hold back new calls for ${name}?`, name),
      stopped
        ? actButton("Start", "start", { servers: [name] }, `Start ${name}?`, name)
        : actButton("Stop", "stop", { servers: [name] }, `Stop ${name} until somebody starts it?`, name)),
  };
}

let whenSure = null;
function sure(question, go) {
  whenSure = go;
  say($("ask-title"), question);
  say($("ask-text"), "Agents notice it at once.");
  $("ask").showModal();
  $("ask-no").focus();
}

// --- drawing ----------------------------------------------------------------------------------------------

function draw() {
  if (!state) return;
  $("sentence").dataset.well = state.well ? "yes" : state.healthy ? "partly" : "no";
  say($("sentence"), state.sentence);
  const problems = JSON.stringify(state.problems);
  if ($("problems").mark !== problems) {
    $("problems").mark = problems;
    put($("problems"), ...state.problems.map((each) => el("li", {}, each)));
  }
  redrawDetails?.();
  ({ overview: drawOverview, calls: drawCalls, servers: drawServers, agents: drawAgents, tools: drawTools })[tab]?.();
}

function rowsOf(name) {
  return state.tables[name].rows.map(([key, cells, values]) => ({ key, cells: [...cells], values }));
}

const columnsOf = (name) => state.tables[name].columns.map(([title, number]) => ({ title, number }));

function drawOverview() {
  const totals = state.totals;
  const facts = [
    ["agents", totals.sessions],
    ["server processes", totals.instances],
    ["open calls", totals.in_flight],
    ["calls so far", totals.calls],
    ["calls/s", state.calls_per_s.toFixed(1)],
    [totals.memory_saved_bytes < 0 ? "memory more" : "memory saved", bytes(Math.abs(totals.memory_saved_bytes))],
  ];
  const place = $("totals");
  if (place.children.length !== facts.length) put(place, ...facts.map(() => el("div", {}, el("dt"), el("dd"))));
  facts.forEach(([name, value], at) => {
    say(place.children[at].children[0], name);
    say(place.children[at].children[1], value);
  });
  drawAgentBoxes();
  drawBroker();
  drawPools();
  drawRecent($("recent-short"), "recent-short", state.recent.slice(0, 12), { narrow: true });
}

// Boxes keep their elements by key, as rows of tables do.
function boxes(place, items, make, update) {
  const kept = (place.boxesKept ??= new Map());
  const wanted = new Set(items.map((item) => item.key));
  for (const [key, box] of kept) {
    if (!wanted.has(key)) {
      box.remove();
      kept.delete(key);
    }
  }
  let before = null;
  for (const item of items) {
    let box = kept.get(item.key);
    if (!box) kept.set(item.key, (box = make(item)));
    update(box, item);
    const at = before ? before.nextSibling : place.firstChild;
    if (at !== box) place.insertBefore(box, at);
    before = box;
  }
}

function drawAgentBoxes() {
  const left = state.tables.agents.left_out;
  say($("flow-agents"), `Agents (${state.totals.sessions}${left ? `, ${left} not shown` : ""}), each with its calls so far`);
  const items = rowsOf("agents").map((row) => ({ key: row.key, name: row.cells[1], via: row.cells[2], open: row.values[5], calls: row.values[6] }));
  boxes($("flow-agent-list"), items,
    (item) => el("button", { type: "button", class: "box agent", onclick: () => showAgent(item.key) }, el("span", { class: "name" }), el("span", { class: "fact" })),
    (box, item) => {
      box.classList.toggle("busy", item.open > 0);
      say(box.children[0], item.name === "-" ? item.key : item.name);
      say(box.children[1], item.calls);
      const title = shown(`${item.key} by ${item.via}: ${item.open} open calls, ${item.calls} so far`);
      if (box.title !== title) box.title = title;
    });
}

function drawBroker() {
  const lines = [
    ["name", `carpool ${state.version}`],
    ["fact", `up ${seconds(state.uptime_s)}`],
    ["fact", `${state.calls_per_s.toFixed(1)} calls/s`],
    ["fact", `${state.totals.in_flight} open calls`],
    ...state.processes.filter((each) => each.role !== "shim").map((each) => ["fact", `${each.role} ${bytes(each.pss_bytes)}`]),
    ...state.hooks.map((each) => ["fact", `hook ${each.name}: ${each.running} running, ${each.denied} denied`]),
  ];
  const place = $("flow-broker-box");
  const mark = lines.map((line) => line[1]).join("|");
  if (place.mark !== mark) {
    place.mark = mark;
    put(place, el("div", { class: "box" }, ...lines.map(([kind, words]) => el("span", { class: kind }, words))));
  }
  // Other nodes of a cluster have their place below the broker.
  const cluster = state.cluster;
  const nodes = JSON.stringify(cluster);
  if ($("flow-nodes").mark !== nodes) {
    $("flow-nodes").mark = nodes;
    put($("flow-nodes"), ...(cluster ? [
      el("h2", {}, `Nodes of ${cluster.name || "the cluster"}`),
      ...(cluster.problem ? [el("p", { class: "prose" }, cluster.problem)] : []),
      ...[cluster.own, ...cluster.nodes].map(nodeBox),
      ...cluster.silent.map((each) => el("div", { class: "box bad" }, el("span", { class: "name" }, each.node), el("span", { class: "fact" }, `silent for ${seconds(each.for_s)}`))),
    ] : []));
  }
}

function nodeBox(node) {
  const latency = node.latency_s === null || node.latency_s === undefined ? "" : `, ${seconds(node.latency_s)} there and back`;
  return el("div", { class: `box${node.state === "not reached" ? " bad" : node.state === "draining" ? " warn" : ""}`, title: shown(`offers ${node.servers.join(", ") || "nothing"}`) },
    el("span", { class: "name" }, node.node),
    el("span", { class: "fact" }, `${node.state}${latency}`),
    el("span", { class: "fact" }, `${node.open_calls} open calls, load ${node.load}`),
    ...(node.labels.length ? [el("span", { class: "fact" }, node.labels.join(", "))] : []));
}

function drawPools() {
  const rows = new Map(rowsOf("servers").map((row) => [row.key, row]));
  const items = Object.entries(state.servers).map(([name, server]) => ({ key: name, server, row: rows.get(name) }));
  boxes($("flow-pool-list"), items,
    (item) => el("button", { type: "button", class: "box pool", onclick: () => showServer(item.key) },
      el("span", { class: "name" }), el("span", { class: "fact" }), el("span", { class: "fact" }), el("span", { class: "instances" })),
    (box, { key, server, row }) => {
      const words = server.paused ? "paused" : server.state;
      box.classList.toggle("bad", BAD_STATES.has(words) || server.well === false);
      box.classList.toggle("warn", WARN_STATES.has(words));
      say(box.children[0], row ? row.cells[0] : key); // SERVER@NODE for one of another node
      say(box.children[1], `${words} · ${server.sharing}${server.waiting ? ` · ${server.waiting} waiting` : ""}`);
      say(box.children[2], row ? `${row.cells[5]}/s · p50 ${row.cells[7]} · p99 ${row.cells[8]}${row.values[6] > 0 ? ` · ${row.cells[6]} errors/s` : ""}` : "");
      const instances = server.instances.slice(0, 24);
      const mark = instances.map((each) => `${each.id} ${each.in_flight} ${each.state} ${each.holder}`).join("|") + server.instance_count;
      if (box.mark !== mark) {
        box.mark = mark;
        put(box.children[3], ...instances.map(instanceChip), ...(server.instance_count > instances.length ? [el("span", { class: "instance" }, `+${server.instance_count - instances.length}`)] : []));
      }
    });
}

const placeOf = (instance) => (instance.node ? `at node ${instance.node}` : instance.pid ? `pid ${instance.pid}` : "not started yet");

function instanceChip(each) {
  const odd = !["serving", "idle", "busy", "ready"].includes(each.state);
  const title = `${placeOf(each)}, ${each.state}, ${each.in_flight} open${each.holder ? `, leased to ${each.holder}` : ""}`;
  return el("span", { class: `instance${each.in_flight ? " busy" : odd ? " odd" : ""}`, title: shown(title) }, `#${each.id}${each.in_flight ? ` ${each.in_flight}` : ""}${each.holder ? " held" : ""}`);
}

function drawRecent(place, name, calls, { narrow = false } = {}) {
  const columns = [
    { title: "ENDED", unsorted: true },
    { title: "CALL", unsorted: true, class: narrow ? "wide-only" : "" },
    { title: "AGENT", unsorted: true, class: narrow ? "wide-only" : "" },
    { title: "TOOL", unsorted: true },
    { title: "WHERE THE TIME WENT", unsorted: true, class: "fall" },
    { title: "TOTAL", number: true, unsorted: true },
    { title: "OUTCOME", unsorted: true },
  ];
  const rows = calls.map((call) => ({
    key: `${call.call} ${call.ended_at}`,
    call,
    words: `${call.call} ${call.agent} ${call.server} ${call.tool} ${call.outcome} ${call.session}`,
    values: [],
    cells: [
      clock(call.ended_at),
      call.call,
      call.agent || call.session,
      opens(nameOf(call), () => showCall(call)),
      { mark: "bar", made: () => bar(call) },
      seconds(call.total_s),
      outcome(call.outcome),
    ],
  }));
  const kept = narrow ? rows : filtered("recent", rows, wordsOf);
  table(place, columns, kept, { name, empty: "No call has ended since you opened this page.", failed: (row) => !GOOD_OUTCOMES.has(row.call.outcome) });
  if (narrow) place.querySelectorAll("th").forEach((cell, at) => cell.classList.toggle("wide-only", at === 1 || at === 2));
}

const nameOf = (call) => [call.server, call.tool || call.method].filter(Boolean).join("/");

function outcome(code) {
  if (GOOD_OUTCOMES.has(code)) return code;
  return opens(code, () => showError(code));
}

// The bar shows the parts of one call, each as a share of its own total.
function bar(call) {
  const parts = PARTS.filter(([key]) => call[key] !== null && call[key] !== undefined);
  const words = parts.map(([key, , meaning]) => `${seconds(call[key])} ${meaning}`).join(", ") || "the parts were not timed";
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "parts");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", words);
  const total = parts.reduce((sum, [key]) => sum + call[key], 0);
  let at = 0;
  const add = (kind, from, share) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    rect.setAttribute("class", kind);
    rect.setAttribute("x", `${from.toFixed(2)}%`);
    rect.setAttribute("y", "2");
    rect.setAttribute("width", `${share.toFixed(2)}%`);
    rect.setAttribute("height", "10");
    svg.append(rect);
  };
  if (!total) add("none", 0, 100);
  for (const [key, kind] of parts) {
    const share = total ? (call[key] / total) * 100 : 0;
    if (share > 0) add(kind, at, share);
    at += share;
  }
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = words;
  svg.append(title);
  return svg;
}

function drawCalls() {
  const rows = rowsOf("calls").map((row) => ({
    ...row,
    cells: [...row.cells, { mark: right, made: () => actButton("Cancel", "cancel", { call: row.key }, `Cancel ${row.key}?`, row.key) }],
  }));
  table($("table-calls"), [...columnsOf("calls"), { title: "", unsorted: true }], filtered("calls", rows, wordsOf),
    { name: "calls", empty: "No call is open.", left: state.tables.calls.left_out });
  let recent = heldRecent ?? state.recent;
  if ($("only-failed").checked) recent = recent.filter((call) => !GOOD_OUTCOMES.has(call.outcome));
  say($("recent-note"), state.recent_left_out ? `${state.recent_left_out} more ended and are not kept` : "");
  drawRecent($("recent-long"), "recent", recent);
}

function drawServers() {
  const rows = rowsOf("servers").map((row) => ({
    ...row,
    cells: [opens(row.cells[0], () => showServer(row.key)), pill(row.cells[1]), ...row.cells.slice(2), serverActs(row.key, state.servers[row.key])],
  }));
  table($("table-servers"), [...columnsOf("servers"), { title: "", unsorted: true }], filtered("servers", rows, wordsOf),
    { name: "servers", empty: "No server is configured.", left: state.tables.servers.left_out });
  $("nodes").hidden = !state.cluster;
  table($("table-nodes"), columnsOf("nodes"), filtered("servers", rowsOf("nodes"), wordsOf),
    { name: "nodes", empty: "No node is known.", left: state.tables.nodes.left_out });
  const hooks = state.hooks.map((each) => ({
    key: each.name,
    values: [],
    cells: [each.name, each.running, each.waiting, each.allowed, each.denied, each.rewritten, each.failed, seconds(each.median_s), each.problem],
  }));
  const titles = ["HOOK", "RUNNING", "WAITING", "ALLOWED", "DENIED", "REWRITTEN", "FAILED", "MEDIAN", "PROBLEM"];
  table($("hooks"), titles.map((title, at) => ({ title, number: at > 0 && at < 8, unsorted: true })), hooks, { name: "hooks", empty: "No hook is configured." });
}

function drawAgents() {
  const rows = rowsOf("agents").map((row) => ({
    ...row,
    cells: [opens(row.cells[0], () => showAgent(row.key)), ...row.cells.slice(1),
      { mark: right, made: () => actButton("Disconnect", "disconnect", { session: row.key }, `Disconnect ${row.key}?`, row.key) }],
  }));
  table($("table-agents"), [...columnsOf("agents"), { title: "", unsorted: true }], filtered("agents", rows, wordsOf),
    { name: "agents", empty: "No agent is connected.", left: state.tables.agents.left_out });
}

function drawTools() {
  table($("table-tools"), columnsOf("tools"), filtered("tools", rowsOf("tools"), wordsOf),
    { name: "tools", empty: "No tool was called in the last minute.", left: state.tables.tools.left_out });
  drawOffer();
}

// --- what is read on demand -------------------------------------------------------------------------------

let offer = null;
async function readOffer() {
  offer = [];
  say($("offer"), "reading …");
  $("offer").tableKept = null;
  try {
    offer = (await ask("tools")).tools;
    put($("offer"));
    drawOffer();
  } catch (error) {
    say($("offer"), error.message);
  }
}

function drawOffer() {
  if (!offer) return void readOffer();
  if (!offer.length && $("offer").textContent) return;
  const rows = offer.map((tool) => ({
    key: tool.name,
    words: `${tool.name} ${tool.server} ${tool.description}`,
    values: [tool.name, tool.server, tool.description],
    cells: [opens(tool.name, () => showTool(tool)), tool.server, String(tool.description ?? "").slice(0, 400)],
  }));
  table($("offer"), [{ title: "TOOL" }, { title: "SERVER" }, { title: "DESCRIPTION", class: "text" }], filtered("offer", rows, wordsOf),
    { name: "offer", empty: "No tool is on offer yet." });
}

async function readProfiles() {
  const place = $("profiles");
  place.tableKept = null;
  say(place, "reading …");
  try {
    const found = (await ask("profiles")).profiles;
    put(place);
    const rows = found.map((each) => ({
      key: each.profile || "(none)",
      values: [each.profile || "(none)", each.tools, each.prompts, each.resources, each.servers.length, "", ""],
      cells: [each.profile || "(none)", `${each.tools} of ${each.of_tools}`, each.prompts, each.resources, each.servers.length, each.servers.join(", "),
        [each.left_out ? `${each.left_out} tools are left out by max_tools` : "", each.unknown.length ? `not known yet: ${each.unknown.join(", ")}` : "", each.idle.length ? `matches nothing: ${each.idle.join(", ")}` : ""].filter(Boolean).join("; ")],
    }));
    const columns = [{ title: "PROFILE" }, { title: "TOOLS", number: true }, { title: "PROMPTS", number: true }, { title: "RESOURCES", number: true }, { title: "SERVERS", number: true }, { title: "WHICH", class: "text" }, { title: "NOTES", class: "text" }];
    table(place, columns, rows, { name: "profiles", empty: "No profile is configured: every agent may use every server that it sees." });
  } catch (error) {
    say(place, error.message);
  }
}

async function readLog() {
  const chooser = $("log-name");
  try {
    let found = await ask("logs", chooser.value ? { log: chooser.value, lines: 200 } : {});
    const chosen = chooser.value || found.logs.find((name) => name === "broker") || found.logs[0];
    if ([...chooser.options].map((each) => each.value).join("|") !== found.logs.join("|")) {
      put(chooser, ...found.logs.map((name) => el("option", { value: name }, name)));
      if (found.logs.includes(chosen)) chooser.value = chosen;
    }
    if (!found.lines.length && chooser.value) found = await ask("logs", { log: chooser.value, lines: 200 });
    const { lines } = found;
    put($("log"), ...lines.map((line) => el("p", { class: line.level }, `${line.at.slice(11, 23)} ${line.instance ? `#${line.instance} ` : ""}${line.message}`)));
    if (!lines.length) say($("log"), "nothing is logged");
    $("log").scrollTop = $("log").scrollHeight;
  } catch (error) {
    put(chooser); // the next reading asks for the list
    say($("log"), error.message);
  }
}

function drawErrors() {
  const rows = Object.entries(errors).map(([code, about]) => ({
    key: code,
    values: [code, about.family, about.delivered, about.what, about.advice],
    cells: [opens(code, () => showError(code)), about.family, about.delivered, about.what, about.advice],
  }));
  table($("error-list"), [{ title: "CODE" }, { title: "FAMILY" }, { title: "DELIVERED" }, { title: "WHAT HAPPENED", class: "text" }, { title: "WHAT TO DO", class: "text" }],
    filtered("errors", rows, wordsOf), { name: "errors", empty: "No error has this text." });
}

// --- details ----------------------------------------------------------------------------------------------

let redrawDetails = null; // draws anew what changes in the open dialog; null: nothing in it does

function details(title, ...parts) {
  redrawDetails = null;
  say($("details-title"), title);
  put($("details-body"), ...parts);
  if (!$("details").open) $("details").showModal();
}

// The dialog shows each state as it comes, and keeps what was read on demand.
function followDetails(redraw) {
  redrawDetails = redraw;
  redraw();
}

const factsCell = (pairs) => ({ mark: JSON.stringify(pairs), made: () => facts(pairs) });

const facts = (pairs) => el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
  .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

function onDemand(words, read) {
  const place = el("div");
  const button = el("button", { type: "button", class: "small", onclick: async () => {
    put(place, el("p", { class: "note" }, "reading …"));
    try {
      put(place, await read());
    } catch (error) {
      put(place, el("p", { class: "prose" }, error.message));
    }
  } }, words);
  return [el("h3", {}, ""), button, place];
}

function showServer(name) {
  if (!state?.servers[name]) return;
  const about = el("div");
  const acts = el("p", { class: "bar" });
  const count = el("h3");
  const list = el("div");
  details(name, about, acts, count, list,
    ...onDemand("Why is it shared like this?", async () => {
      const lines = (await ask("why", { server: name })).pools.flatMap((pool) => [...(pool.lines || []), ""]);
      return el("pre", {}, lines.join("\n"));
    }),
    ...onDemand("Its log", async () => {
      const { lines } = await ask("logs", { log: `server-${name}`, lines: 60 });
      return el("pre", {}, lines.map((line) => `${line.at.slice(11, 23)} ${line.message}`).join("\n") || "nothing is logged");
    }));
  followDetails(() => {
    const server = state.servers[name];
    const gone = [["state", "no longer configured"]];
    fill(about, factsCell(server ? serverFacts(server) : gone));
    fill(acts, server ? serverActs(name, server) : "");
    say(count, `Instances (${server?.instance_count ?? 0})`);
    table(list, INSTANCE_COLUMNS, (server?.instances ?? []).map(instanceRow), { name: "instances", empty: "No instance runs.", left: server ? server.instance_count - server.instances.length : 0 });
  });
}

const serverFacts = (server) => [["state", server.paused ? "paused" : server.state], ["node", server.node === "*" ? "any that offers it" : server.node], ["sharing", server.sharing], ["tools", server.tools], ["waiting calls", server.waiting], ["restarts", server.restarts], ["tags", (server.tags || []).join(", ")], ["last error", server.last_error]];

const INSTANCE_COLUMNS = [["ID"], ["PID", true], ["STATE"], ["OPEN", true], ["CALLS", true], ["PSS", true], ["CPU", true], ["UP", true], ["LEASED TO"], ["WHY"]]
  .map(([title, number]) => ({ title, number, unsorted: true }));

// An instance at another node has no process here, and one that is being started has none yet.
function instanceRow(each) {
  const known = (value, words) => (each.node || value === null || value === undefined ? "–" : words(value));
  return {
    key: String(each.id),
    values: [],
    cells: [`#${each.id}`, each.node ? `at ${each.node}` : each.pid || "–", each.state, each.in_flight, each.calls, known(each.pss_bytes, bytes), known(each.cpu_percent, (value) => `${Math.round(value)} %`), seconds(each.uptime_s), each.holder || "", each.why || ""],
  };
}

function showAgent(key) {
  const rowOf = () => rowsOf("agents").find((each) => each.key === key);
  if (!rowOf()) return;
  const about = el("div");
  const place = el("div");
  details(`Session ${key}`, about,
    el("p", { class: "bar" }, actButton("Disconnect", "disconnect", { session: key }, `Disconnect ${key}?`, key)),
    el("h3", {}, "Its recent calls"), place);
  followDetails(() => {
    const names = columnsOf("agents").map((each) => each.title.toLowerCase());
    const row = rowOf();
    fill(about, factsCell(row ? names.map((name, at) => [name, row.cells[at]]) : [["session", `${key} has ended`]]));
    drawRecent(place, "of-agent", state.recent.filter((call) => call.session === key).slice(0, 20), { narrow: true });
  });
}

function showCall(call) {
  const times = PARTS.filter(([key]) => call[key] !== null && call[key] !== undefined).map(([key, , meaning]) => [meaning, seconds(call[key])]);
  const failed = !GOOD_OUTCOMES.has(call.outcome);
  details(`${call.call}: ${nameOf(call)}`,
    bar(call),
    facts([...times, ["total", seconds(call.total_s)], ["outcome", call.outcome], ["agent", call.agent], ["session", call.session], ["token", call.principal], ["profile", call.profile], ["instance", call.instance === null ? "" : `#${call.instance}`], ["method", call.method], ["in", bytes(call.bytes_in)], ["out", bytes(call.bytes_out)]]),
    ...(failed ? explanation(call.outcome) : []),
    ...onDemand("What happened to it", async () => {
      const { steps } = await ask("story", { call: call.call });
      if (!steps.length) return el("p", { class: "note" }, "Its steps are forgotten: journals hold the last few hundred calls.");
      const first = steps[0].at;
      return el("pre", {}, steps.map((step) => `${((step.at - first) * 1000).toFixed(1).padStart(8)} ms  ${step.where.padEnd(11)}${step.text}`).join("\n"));
    }));
}

function explanation(code) {
  const about = errors[code];
  if (!about) return [el("h3", {}, code), el("p", { class: "prose" }, NOT_OURS[code] || "The page of errors has no such code.")];
  const seen = about.delivered === "no" ? "No server saw the call: it is safe to repeat." : "The call was written to a server: it may have been executed.";
  return [el("h3", {}, code), el("p", { class: "prose" }, about.what), el("p", { class: "prose" }, about.advice), el("p", { class: "note" }, `${about.family}. ${about.family === "refused" ? "The same request fails again." : seen}`)];
}

function showError(code) {
  const [, ...parts] = explanation(code);
  details(code, ...parts, el("p", { class: "bar" }, el("button", { type: "button", class: "small", onclick: () => {
    $("details").close();
    document.querySelector('[data-filter="errors"]').value = code;
    choose("errors");
  } }, "On the page of errors")));
}

async function showTool(tool) {
  details(tool.name, facts([["server", tool.server], ["its own name", tool.tool], ["tags", (tool.tags || []).join(", ")]]),
    el("p", { class: "prose" }, tool.description ?? ""),
    ...onDemand("Definition", async () => {
      const found = (await ask("tools", { name: tool.name })).tools[0];
      return el("pre", {}, JSON.stringify(found.definition, null, 2));
    }));
}

// --- tabs -------------------------------------------------------------------------------------------------

let tab = "overview";
const tabs = [...document.querySelectorAll('[role="tab"]')];

function choose(name, focus = false) {
  if (!tabs.some((each) => each.dataset.tab === name)) return;
  tab = name;
  for (const each of tabs) {
    const chosen = each.dataset.tab === name;
    each.setAttribute("aria-selected", String(chosen));
    each.tabIndex = chosen ? 0 : -1;
    $(`panel-${each.dataset.tab}`).hidden = !chosen;
    if (chosen && focus) each.focus();
  }
  history.replaceState(null, "", `#${name}`);
  if (name === "profiles") readProfiles();
  if (name === "logs") readLog();
  if (name === "errors") drawErrors();
  draw();
}

$("tabs").addEventListener("click", (event) => {
  const name = event.target.dataset?.tab;
  if (name) choose(name);
});
$("tabs").addEventListener("keydown", (event) => {
  const at = tabs.findIndex((each) => each.dataset.tab === tab);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  choose(tabs[(next + tabs.length) % tabs.length].dataset.tab, true);
});

document.addEventListener("input", (event) => {
  if (event.target.dataset?.filter === "errors") drawErrors();
  else if (event.target.dataset?.filter || event.target.id === "only-failed") draw();
});
$("pause").addEventListener("click", () => {
  heldRecent = heldRecent ? null : state?.recent ?? [];
  $("pause").setAttribute("aria-pressed", String(Boolean(heldRecent)));
  draw();
});
$("tools-again").addEventListener("click", readOffer);
$("logs-again").addEventListener("click", readLog);
$("log-name").addEventListener("change", readLog);
$("details-close").addEventListener("click", () => $("details").close());
$("details").addEventListener("close", () => {
  redrawDetails = null;
});
$("ask-no").addEventListener("click", () => $("ask").close());
$("ask-yes").addEventListener("click", () => {
  $("ask").close();
  whenSure?.();
});
$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const typed = $("key").value.trim();
  $("key").value = "";
  await keep(typed.includes("#code=") ? typed.split("#code=")[1] : typed);
  watch();
});
$("enter").addEventListener("click", () => {
  say($("login-text"), "With the key this page may restart, stop and pause servers, cancel calls, disconnect agents and read logs. Run `carpool web` on the machine where carpool runs.");
  $("login").hidden = !$("login").hidden;
  if (!$("login").hidden) $("key").focus();
});
$("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  token = "";
  $("forget").hidden = true;
  watch();
});

// A page that nobody sees reads nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.abort();
    isLive = false;
    link("wait", "not in view");
  } else watch();
});

// A fragment that is no part of the page does not stay in the address. The browser's history keeps it, so it is a
// code, which counts once: the page gives it for the key.
async function takeFragment() {
  const found = location.hash.slice(1);
  if (!found || tabs.some((each) => each.dataset.tab === found)) return false;
  history.replaceState(null, "", location.pathname);
  if (found.startsWith("code=")) await keep(found.slice(5));
  else tell("This address leads to no part of the page.");
  return true;
}

// Codes, keys and tokens are of visible ASCII; another text could not be sent as a header.
async function keep(words) {
  if (!/^[\x21-\x7e]{1,1000}$/.test(words) || words.includes("%")) {
    tell("This is no code and no key: copy the whole address that `carpool web` prints.");
    return;
  }
  if (!words.startsWith("once-")) {
    token = words;
    return;
  }
  try {
    const found = await answerOf(await fetch("/operator/key", plain(posted({ code: words }))));
    sessionStorage.setItem(KEY, found.key);
    token = "";
  } catch (error) {
    tell(error.message);
  }
}

addEventListener("hashchange", async () => {
  if (await takeFragment()) watch();
  else choose(location.hash.slice(1));
});

(async () => {
  await takeFragment();
  choose(location.hash.slice(1) || "overview");
  try {
    errors = await (await fetch("/web/errors.json", plain({}))).json();
  } catch {
    errors = {};
  }
  if (tab === "errors") drawErrors();
  watch();
})();
