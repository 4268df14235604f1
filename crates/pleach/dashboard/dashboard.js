// The dashboard of pleach: shows what /v1/live/stream tells once a second. No dependency, no build step.
"use strict";

// ---- links

/** How the state of a link is called and coloured. */
function pill(link) {
  if (link.state !== "up") return [link.state, link.state];
  if (["too-late-for-its-flows", "worth-too-little"].includes(link.idle_reason)) return ["left out", "idle"];
  if (link.idle_reason) return ["ready", "calm"];
  return ["in use", "up"];
}

const cards = new Map();

function card(name) {
  if (cards.has(name)) return cards.get(name);
  const parts = {
    title: make("span"), device: make("small"), pill: make("span", { class: "pill" }), why: make("p", { class: "why" }),
    advice: make("p", { class: "advice" }), fill: make("div"), load: make("small"), numbers: {},
  };
  const list = make("dl", { class: "numbers" });
  for (const [key, text] of [["rx", "Download"], ["tx", "Upload"], ["capacity", "Capacity up"], ["rtt", "Delay"], ["queue", "Queue"], ["loss", "Loss"]]) {
    parts.numbers[key] = make("dd", {}, "–");
    list.append(make("div", {}, make("dt", {}, text), parts.numbers[key]));
  }
  parts.weight = make("form", { class: "weight" });
  const id = `weight-${cards.size}`;
  parts.input = make("input", { id, type: "number", min: "1", max: "1000", inputmode: "numeric" });
  parts.weight.append(make("label", { for: id }, "Weight"), parts.input, make("button", {}, "Set"), make("span", { role: "status" }));
  parts.weight.addEventListener("submit", (event) => {
    event.preventDefault();
    setWeight(name, Number(parts.input.value), parts.weight.lastChild);
  });
  parts.root = make("div", { class: "link", role: "listitem", "data-link": name },
    make("div", { class: "row" }, make("h3", {}, parts.title, parts.device), parts.pill),
    parts.why, parts.advice, make("div", { class: "meter", "aria-hidden": "true" }, parts.fill), parts.load, list, parts.weight);
  cards.set(name, parts);
  return parts;
}

function showLinks(live) {
  const seen = new Set();
  const shown = live.links.map((link) => {
    seen.add(link.name);
    const parts = card(link.name);
    say(parts.title, link.name);
    say(parts.device, link.device === link.name ? "" : link.device);
    const [word, kind] = pill(link);
    say(parts.pill, word);
    parts.pill.className = `pill ${kind}`;
    const why = link.why ?? "";
    say(parts.why, why === "" ? "" : `${why}.`);
    say(parts.advice, link.advice ?? "");
    parts.advice.hidden = !link.advice;
    // What was measured while it worked says nothing of now.
    const works = link.state !== "down";
    const numbers = {
      rx: rateText(link.rx_mbps), tx: rateText(link.tx_mbps), capacity: works ? rateText(link.capacity_mbps) : "–",
      rtt: millis(works ? link.rtt_ms : null), queue: millis(works ? link.queue_delay_ms : null),
      loss: works ? percent(link.loss) : "–",
    };
    for (const [key, text] of Object.entries(numbers)) say(parts.numbers[key], text);
    parts.root.style.borderLeftColor = colour(link.name);
    parts.fill.style.background = colour(link.name);
    const share = works && link.capacity_mbps ? Math.min(1, (link.tx_mbps ?? 0) / link.capacity_mbps) : 0;
    parts.fill.style.width = `${(share * 100).toFixed(1)}%`;
    say(parts.load, works && link.capacity_mbps ? `${(share * 100).toFixed(0)} % of its capacity upwards` : "");
    const weighs = state.mayChange && ["weighted", "fixed", "auto", "live"].includes(live.policy);
    parts.weight.hidden = !weighs;
    parts.weight.style.display = weighs ? "" : "none";
    if (document.activeElement !== parts.input) parts.input.value = link.weight;
    return parts.root;
  });
  for (const [name, parts] of cards) if (!seen.has(name)) parts.root.remove();
  const list = $("links");
  shown.forEach((root, at) => {
    if (list.children[at] !== root) list.insertBefore(root, list.children[at] ?? null);
  });
  $("links-section").hidden = live.mode === "gateway";
}

async function setWeight(name, weight, note) {
  const answer = await ask("/v1/weights", {
    method: "PUT",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ weights: { [name]: weight } }),
  });
  const result = await answer.json();
  say(note, answer.ok ? "set" : result.error);
}

// ---- tables and facts

function showRows(body, rows, filter, columns) {
  const wanted = filter.trim().toLowerCase();
  const text = (row) => row.filter((cell) => typeof cell === "string").join(" ").toLowerCase();
  const found = rows.filter((row) => wanted === "" || text(row).includes(wanted));
  const lines = found.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))));
  if (lines.length === 0) lines.push(make("tr", {}, make("td", { colspan: String(columns), class: "empty" }, "none")));
  body.replaceChildren(...lines);
}

function showClients(live) {
  const isGateway = live.mode === "gateway";
  $("clients-section").hidden = !isGateway;
  if (!isGateway) return;
  say($("clients-title"), `Clients: ${live.clients_up} of ${live.client_count} connected`);
  const rows = live.clients.map((client) => [
    client.name,
    client.up ? "connected" : "not connected",
    rateText(client.tx_mbps),
    rateText(client.rx_mbps),
    client.links.map((link) => `${link.name} ${pill(link)[0]}, ${millis(link.rtt_ms)}`).join("; ") || "–",
  ]);
  showRows($("clients"), rows, $("clients-filter").value, 5);
}

function showConnections(live) {
  const isProxy = live.mode === "proxy";
  $("connections-section").hidden = !isProxy;
  if (!isProxy) return;
  say($("connections-title"), `Connections: ${live.connection_count ?? 0}`);
  if ($("connections").contains(document.activeElement)) return; // a menu is in use
  const rows = live.connections.map((connection) => [
    connection.target, connection.app ?? "–", connection.striped ? "several" : (connection.link ?? "–"),
    connection.why, rateText(connection.rate_mbps), bytes(connection.rx_bytes),
    linkMenu(live, "", ruleOf(connection)),
  ]);
  showRows($("connections"), rows, $("connections-filter").value, 7);
}

/** The rule that assigns new connections like this one: those of its program, or else those to its destination. */
function ruleOf({ app, target }) {
  if (app) return { app };
  const colon = target.lastIndexOf(":");
  return { destination: target.slice(0, colon).replace(/^\[|\]$/g, ""), port: target.slice(colon + 1) };
}

/** A menu that puts connections of `rule` on a link, as `pleach set` does. Without it for readers. */
function linkMenu(live, chosen, rule) {
  if (!state.mayChange) return chosen || "–";
  const names = live.links.map((link) => link.name);
  const options = [["auto", "as scheduled"], ...names.map((name) => [name, name])];
  const what = Object.entries(rule).map(([key, value]) => `${key} ${value}`).join(", ");
  const menu = make("select", { "aria-label": `Link for new connections: ${what}` });
  for (const [value, text] of options) menu.append(make("option", { value }, text));
  menu.value = chosen || "auto";
  const button = make("button", { type: "button", "aria-label": `Set the link for new connections: ${what}` }, "Set");
  button.addEventListener("click", () => {
    change({ ...rule, link: menu.value }, $("applications-note"));
    document.activeElement.blur();
  });
  return make("span", { class: "choices" }, menu, button);
}

async function change(set, note) {
  try {
    const answer = await ask("/v1/set", {
      method: "PUT",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ set }),
    });
    const result = await answer.json();
    say(note, answer.ok ? `set: ${Object.entries(set).map(([key, value]) => `${key} ${value}`).join(", ")}` : result.error);
  } catch {
    say(note, "the daemon does not answer");
  }
}

/** Schedulers of a proxy, as in docs/proxy.md. */
const SCHEDULERS = ["max-throughput", "makespan", "weighted-round-robin", "round-robin", "only-one"];

function showApplications(live) {
  $("applications-section").hidden = live.mode !== "proxy";
  if (live.mode !== "proxy") return;
  $("scheduler-form").hidden = !state.mayChange;
  const menu = $("scheduler");
  if (menu.children.length === 0) {
    for (const name of SCHEDULERS) menu.append(make("option", { value: name }, name));
    $("scheduler-form").addEventListener("submit", (event) => {
      event.preventDefault();
      change({ scheduler: menu.value }, $("scheduler-note"));
      document.activeElement.blur();
    });
  }
  if (!$("scheduler-form").contains(document.activeElement)) menu.value = live.policy;
  if ($("applications").contains(document.activeElement)) return;
  const rows = Object.entries(live.applications).map(([name, app]) => [
    name, app.class ?? "–", bytes(app.demand_down_bytes), bytes(app.demand_up_bytes), String(app.connections),
    linkMenu(live, app.link ?? "", name.startsWith(":") ? { port: name.slice(1) } : { app: name }),
  ]);
  showRows($("applications"), rows, "", 6);
}

/** Splits the conditions of a rule, such as "app=curl port=443", into what `pleach set` takes. A program's name may contain spaces. */
function conditionsOf(rule) {
  const pairs = rule.split(/ (?=(?:protocol|port|destination)=)/);
  return Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]));
}

/** Where a rule is from. A rule that was set at run time has a button that removes it. */
function originOf(rule) {
  if (!rule.live) return "the file";
  if (!state.mayChange) return "run time";
  const button = make("button", { type: "button", "aria-label": `Remove the rule ${rule.rule}` }, "Remove");
  button.addEventListener("click", () => {
    change({ ...conditionsOf(rule.rule), link: "auto" }, $("rules-note"));
    button.blur();
  });
  return button;
}

function showRules(live) {
  const form = $("rule-form");
  form.hidden = !state.mayChange;
  $("rules-section").hidden = live.mode !== "client" || (form.hidden && live.rules.length === 0);
  if (live.mode !== "client") return;
  const menu = form.elements.link;
  if (!menu.dataset.ready) {
    menu.dataset.ready = "true";
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = [...new FormData(form)].filter(([, value]) => value.trim() !== "");
      const set = Object.fromEntries(given.map(([key, value]) => [key, value.trim()]));
      if (set.link === undefined) set.action = "block";
      change(set, $("rules-note"));
    });
  }
  const names = live.links.map((link) => link.name);
  if (!form.contains(document.activeElement) && menu.dataset.names !== names.join()) {
    menu.dataset.names = names.join();
    const options = [...names.map((name) => [name, name]), ["", "none: drop the packets"]];
    menu.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  }
  if ($("rules").contains(document.activeElement)) return;
  const rows = live.rules.map((rule) => [
    rule.rule === "" ? "anything" : rule.rule,
    rule.link === null ? "none" : rule.strict ? `${rule.link} only` : rule.link,
    String(rule.packets), bytes(rule.bytes), String(rule.dropped), originOf(rule),
  ]);
  showRows($("rules"), rows, "", 6);
}

function showGateways(live) {
  $("gateways-section").hidden = live.gateways.length === 0;
  const items = live.gateways.map((gateway) =>
    make("li", {}, `${gateway.why}. `, make("small", {}, millis(gateway.rtt_ms))));
  $("gateways").replaceChildren(...items);
}

function showDetails(live) {
  const facts = [];
  if (live.repair) {
    facts.push(["Waiting in the queue", `${live.repair.queued} packets`]);
    facts.push(["Held for order", `${live.resequencer.held} packets`]);
    facts.push(["Held at most (95 %)", millis(live.resequencer.hold_p95_ms)]);
    facts.push(["Sent again elsewhere", String(live.repair.reinjected)]);
    facts.push(["Repair symbols sent", String(live.repair.symbols_sent)]);
    facts.push(["Rebuilt from them", String(live.repair.recovered)]);
  }
  if (live.uplink) facts.push(["Safe for live video", rateText(live.uplink.rate_mbps)]);
  for (const [name, kind] of Object.entries(live.classes)) facts.push([`Class ${name}`, `${kind.packets} packets`]);
  for (const [name, budget] of Object.entries(live.budgets)) {
    facts.push([`Budget of ${name}`, `${bytes(budget.used_bytes)} of ${bytes(budget.bytes)}`]);
    if (budget.forecast_bytes !== undefined) {
      const day = new Date(budget.renews_at_s * 1000).toLocaleDateString([], { timeZone: "UTC" });
      facts.push([`Forecast of ${name}`, `${bytes(budget.forecast_bytes)} until ${day}`]);
    }
  }
  for (const [name, split] of Object.entries(live.splitter?.links ?? {})) {
    const sent = split.share_bytes === null ? "–" : percent(split.share_bytes);
    facts.push([`Share of ${name}`, `${sent}, wanted ${percent(split.share_wanted)}`]);
  }
  for (const [reason, count] of Object.entries(live.drops)) {
    facts.push([`Dropped: ${reason.replaceAll("_", " ")}`, String(count)]);
  }
  $("details-section").hidden = facts.length === 0;
  $("details").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/** A gateway's page tells of directions as seen from it, and has no picture of links. */
function nameDirections(live) {
  if (live.mode !== "gateway" || VIEWS.rx.name === "From clients") return;
  Object.assign(VIEWS.rx, { name: "From clients", title: "Received from all clients" });
  Object.assign(VIEWS.tx, { name: "To clients", title: "Sent to all clients" });
  for (const side of ["rx", "tx"]) say($(`name-${side}`), VIEWS[side].name);
  for (const tab of $("tabs").children) {
    say(tab, VIEWS[tab.dataset.view].name);
    tab.hidden = !["rx", "tx"].includes(tab.dataset.view);
  }
  $("range").parentElement.querySelector("label").hidden = true;
  $("range").hidden = true;
}

function showNow(live) {
  nameDirections(live);
  for (const side of ["rx", "tx"]) {
    const [number, unit] = rate(live[`${side}_mbps`]);
    say($(`now-${side}`), number);
    say($(`now-${side}-unit`), unit);
    const most = Math.max(0, ...state.points.map((point) => point[`${side}_mbps`] ?? 0));
    say($(`most-${side}`), `peak ${rateText(most)}`);
  }
  const links = live.mode === "gateway" ? live.clients.flatMap((client) => client.links) : live.links;
  const delays = links.filter((link) => link.state === "up" && link.rtt_ms !== null).map((link) => link.rtt_ms);
  const least = delays.length > 0 ? Math.min(...delays) : null;
  say($("now-rtt"), least === null ? "–" : least >= 10 ? least.toFixed(0) : least.toFixed(1));
  if (live.repair) {
    say($("now-repair"), live.repaired_per_s === null ? "–" : live.repaired_per_s.toFixed(0));
  } else {
    say($("repair-title"), live.mode === "proxy" ? "Connections" : "Links up");
    const up = live.links.filter((link) => link.state === "up").length;
    say($("now-repair"), String(live.connection_count ?? up));
    say($("repair-unit"), "");
    say($("repair-note"), "now");
  }
}

// ---- events

function showEvents(events) {
  const list = $("events");
  for (const event of events) {
    const time = make("time", { datetime: new Date(event.at_ms).toISOString() }, clock(event.at_ms));
    list.prepend(make("li", {}, time, make("span", { class: event.level }, event.text)));
  }
  while (list.children.length > 100) list.lastChild.remove();
}

// ---- the stream

function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token !== "") headers.Authorization = `Bearer ${state.token}`;
  return fetch(path, { ...options, headers });
}

function take(live) {
  state.live = live;
  const keep = ({ name, tx_mbps, rx_mbps, rtt_ms, queue_delay_ms, capacity_mbps, loss }) =>
    ({ name, tx_mbps, rx_mbps, rtt_ms, queue_delay_ms, capacity_mbps, loss });
  if (state.points.at(-1)?.at_ms !== live.at_ms) {
    const { at_ms, tx_mbps, rx_mbps, repaired_per_s } = live;
    state.points.push({ at_ms, tx_mbps, rx_mbps, repaired_per_s, links: live.links.map(keep) });
    if (state.points.length > KEPT) state.points.shift();
  }
  say($("headline-text"), live.headline);
  $("headline").firstChild.className = `dot ${live.up ? "up" : "down"}`;
  say($("facts"), live.mode === "equalize" ? `weights ${live.policy}` : `policy ${live.policy}`);
  document.title = `${live.up ? "" : "down: "}${live.name} · pleach`;
  showNow(live);
  showLinks(live);
  showClients(live);
  showGateways(live);
  showRules(live);
  showApplications(live);
  showConnections(live);
  showDetails(live);
  draw();
  document.documentElement.dataset.at = String(live.at_ms);
}

/** Reads server-sent events (HTML standard, 9.2) until the stream ends. */
async function follow() {
  const answer = await ask("/v1/live/stream");
  if (!answer.ok) throw answer;
  offline("");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((text) => [text.slice(0, text.indexOf(":")), text.slice(text.indexOf(":") + 1).trim()]);
      const name = fields.find(([key]) => key === "event")?.[1];
      const data = fields.filter(([key]) => key === "data").map(([, text]) => text).join("\n");
      if (name === "live") take(JSON.parse(data));
      if (name === "events") showEvents(JSON.parse(data));
    }
  }
}

function offline(text) {
  say($("offline"), text);
  $("offline").hidden = text === "";
}

/** Asks for a token until one is right. */
function login(message) {
  return new Promise((resolve) => {
    say($("login-error"), message);
    const dialog = $("login");
    dialog.addEventListener("close", () => {
      state.token = $("token").value.trim();
      sessionStorage.setItem("token", state.token);
      resolve();
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function run() {
  makeTabs();
  addEventListener("resize", draw);
  $("range").addEventListener("change", () => {
    state.range = Number($("range").value);
    say($("chart-note"), "");
    fetchPast();
    draw();
  });
  setInterval(fetchPast, 60_000);
  for (const id of ["clients-filter", "connections-filter"]) {
    $(id).addEventListener("input", () => state.live && (showClients(state.live), showConnections(state.live)));
  }
  // A link may bring the token behind #, which is never sent to a server.
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname);
  state.token = given ?? sessionStorage.getItem("token") ?? "";
  for (let wait = 1000; ; wait = Math.min(wait * 2, 15_000)) {
    try {
      const about = await ask("/v1/about");
      if (about.status === 401) {
        await login(state.token === "" ? "" : "The daemon does not know this token.");
        wait = 500;
        continue;
      }
      if (!about.ok) throw about;
      const { version, may_change } = await about.json();
      state.mayChange = may_change;
      say($("version"), `pleach ${version}${may_change ? "" : ", read only"}`);
      const past = await ask("/v1/past");
      if (past.ok) state.points = await past.json();
      $("events").replaceChildren();
      await follow();
      wait = 1000;
    } catch (error) {
      if (error instanceof Response && error.status !== 503) {
        const problem = await error.json().catch(() => ({ error: "" }));
        offline(`The daemon refuses: ${problem.error}`);
        await pause(wait);
        continue;
      }
    }
    offline("The daemon does not answer; trying again …");
    $("headline").firstChild.className = "dot";
    await pause(wait);
  }
}

run();
