// The dashboard of pleach: draws what /v1/live/stream tells once a second. No dependency, no build step.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const KEPT = 300; // points of the pictures: five minutes
const COLOURS = 8; // custom properties --c0 and so on of the style sheet
const $ = (id) => document.getElementById(id);

const state = {
  token: "",
  mayChange: false,
  points: [], // as /v1/past has them
  colours: new Map(), // link -> custom property
  view: "rx",
  live: null,
  lastRepair: null,
  range: 0, // seconds of the picture; 0: the points
  past: [], // points of the history, if a range is chosen
  step: 1, // seconds between two of them
};

// ---- small tools

/** An element with text or children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Sets text only where it differs, so that nothing is announced or drawn anew without need. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A rate in 10^6 bit/s as number and unit. */
function rate(mbps) {
  if (mbps === null || mbps === undefined) return ["–", "Mbit/s"];
  if (mbps >= 1000) return [(mbps / 1000).toFixed(2), "Gbit/s"];
  if (mbps >= 100) return [mbps.toFixed(0), "Mbit/s"];
  if (mbps >= 1) return [mbps.toFixed(1), "Mbit/s"];
  return [(mbps * 1000).toFixed(0), "kbit/s"];
}

const rateText = (mbps) => rate(mbps).join(" ");

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) {
    count /= 1024;
    at += 1;
  }
  return `${at === 0 ? count : count.toFixed(1)} ${units[at]}`;
}

const millis = (ms) => (ms === null || ms === undefined ? "–" : `${ms >= 10 ? ms.toFixed(0) : ms.toFixed(1)} ms`);
const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.001 ? 2 : 1)} %`;
const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });

function colour(link) {
  if (!state.colours.has(link)) state.colours.set(link, `var(--c${state.colours.size % COLOURS})`);
  return state.colours.get(link);
}

// ---- pictures

/** What the picture may show: `stack` adds the links up, else each has a line of its own. */
const VIEWS = {
  rx: { name: "Download", title: "Download by link", value: (link) => link.rx_mbps, stack: true, unit: rateText },
  tx: { name: "Upload", title: "Upload by link", value: (link) => link.tx_mbps, stack: true, unit: rateText },
  capacity: { name: "Capacity", title: "Capacity upwards by link", value: (link) => link.capacity_mbps, unit: rateText },
  rtt: { name: "Delay", title: "Round trip by link", value: (link) => link.rtt_ms, unit: millis },
  queue: { name: "Queue", title: "Queue upwards by link", value: (link) => link.queue_delay_ms, unit: millis },
  loss: { name: "Loss", title: "Loss upwards by link", value: (link) => link.loss, unit: percent },
};

function makeTabs() {
  const names = Object.keys(VIEWS);
  const choose = (view, focus) => {
    state.view = view;
    for (const tab of $("tabs").children) {
      const chosen = tab.dataset.view === view;
      tab.setAttribute("aria-checked", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen && focus) tab.focus();
    }
    draw();
  };
  for (const view of names) {
    const tab = make("button", { type: "button", role: "radio", "data-view": view }, VIEWS[view].name);
    tab.addEventListener("click", () => choose(view, false));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const there = names.filter((view) => !$("tabs").querySelector(`[data-view=${view}]`).hidden);
      choose(there[(there.indexOf(state.view) + step + there.length) % there.length], true);
    });
    $("tabs").append(tab);
  }
  choose(state.view, false);
}

/** The least round number that is not less than `value`. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999) ?? value;
}

function line(x1, y1, x2, y2, name) {
  const element = document.createElementNS(SVG, "line");
  for (const [key, value] of Object.entries({ x1, y1, x2, y2, class: name })) element.setAttribute(key, value);
  return element;
}

function label(x, y, text, anchor) {
  const element = document.createElementNS(SVG, "text");
  for (const [key, value] of Object.entries({ x, y, "text-anchor": anchor })) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

function shape(points, fill, stroke) {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("d", points);
  element.style.fill = fill;
  element.style.stroke = stroke;
  element.style.strokeWidth = "2";
  element.style.strokeLinejoin = "round";
  if (fill !== "none") element.style.fillOpacity = "0.75";
  return element;
}

/** Names of all links that the points have, in the order in which they came. */
function names() {
  const found = new Set();
  for (const point of shown()) for (const link of point.links) found.add(link.name);
  return [...found];
}

/** What the picture is made of. */
const shown = () => (state.range === 0 ? state.points : state.past);

/** Places of the marks below a picture of so many seconds: how far apart, and how they are called. */
function marks(span) {
  const units = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const steps = [20, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400];
  const step = steps.find((step) => span / step <= 7) ?? span;
  const name = (back) => {
    const [size, unit] = units.find(([size]) => back % size === 0);
    return back === 0 ? "now" : `−${back / size} ${unit}`;
  };
  return [step, name];
}

function draw() {
  const chart = $("chart");
  const view = VIEWS[state.view];
  say($("chart-title"), view.title);
  const width = chart.clientWidth || 600;
  const height = chart.clientHeight || 230;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const [left, right, top, bottom] = [72, width - 4, 10, height - 22];
  const isGateway = state.live?.mode === "gateway";
  const links = isGateway ? ["all clients"] : names();
  // A gateway's points have totals alone.
  const at = (point, link) => {
    if (isGateway) return { rx: point.rx_mbps, tx: point.tx_mbps }[state.view] ?? null;
    const found = point.links.find((known) => known.name === link);
    return found ? (view.value(found) ?? null) : null;
  };
  const now = state.points.at(-1)?.at_ms ?? 0;
  const lived = Math.max(60_000, Math.min(KEPT * 1000, now - (state.points[0]?.at_ms ?? now)));
  const span = state.range === 0 ? lived : state.range * 1000;
  const points = shown().filter((point) => point.at_ms >= now - span && point.at_ms <= now);
  const x = (point) => right - ((now - point.at_ms) / span) * (right - left);
  let most = 0;
  for (const point of points) {
    const values = links.map((link) => at(point, link) ?? 0);
    most = Math.max(most, view.stack ? values.reduce((sum, value) => sum + value, 0) : Math.max(0, ...values));
  }
  const least = { loss: 0.01, rtt: 1, queue: 1 }[state.view] ?? 0.1;
  const high = ceiling(Math.max(most, least));
  const y = (value) => bottom - (value / high) * (bottom - top);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    parts.push(line(left, y(high * share), right, y(high * share), "grid"));
    parts.push(label(left - 8, y(high * share) + 4, share === 0 ? "0" : view.unit(high * share), "end"));
  }
  const [step, name] = marks(span / 1000);
  for (let back = 0; back * 1000 <= span; back += step) {
    const place = right - ((back * 1000) / span) * (right - left);
    parts.push(label(place, height - 5, name(back), back === 0 ? "end" : place < left + 20 ? "start" : "middle"));
  }
  // A gap longer than a few steps is one in which nobody looked: no line across it.
  const gap = state.range === 0 ? 4000 : state.step * 3500;
  const runs = [];
  for (const point of points) {
    const last = runs.at(-1)?.at(-1);
    if (last && point.at_ms - last.at_ms < gap) runs.at(-1).push(point);
    else runs.push([point]);
  }
  for (const run of runs) {
    const base = run.map(() => 0);
    for (const link of links) {
      if (view.stack) {
        const upper = run.map((point, i) => base[i] + (at(point, link) ?? 0));
        const there = run.map((point, i) => `${x(point).toFixed(1)},${y(upper[i]).toFixed(1)}`);
        const back = run.map((point, i) => `${x(point).toFixed(1)},${y(base[i]).toFixed(1)}`).reverse();
        parts.push(shape(`M${there.join("L")}L${back.join("L")}Z`, colour(link), "none"));
        upper.forEach((value, i) => (base[i] = value));
      } else {
        const known = run.filter((point) => at(point, link) !== null);
        const there = known.map((point) => `${x(point).toFixed(1)},${y(at(point, link)).toFixed(1)}`);
        if (there.length > 0) parts.push(shape(`M${there.join("L")}`, "none", colour(link)));
      }
    }
  }
  chart.replaceChildren(...parts);
  const last = points.at(-1);
  const values = last ? links.map((link) => `${link} ${view.unit(at(last, link))}`).join(", ") : "no values yet";
  chart.setAttribute("aria-label", `${view.title}, now: ${values}`);
  const legend = links.map((link) => {
    const key = make("span", { class: "key", "aria-hidden": "true" });
    key.style.background = colour(link);
    return make("li", {}, key, `${link} ${last ? view.unit(at(last, link)) : ""}`);
  });
  $("legend").replaceChildren(...legend);
}

/** Gets the history of the range that is chosen. */
async function fetchPast() {
  if (state.range === 0) return;
  const now = Math.floor(Date.now() / 1000);
  const answer = await ask(`/v1/history?from=${now - state.range}&to=${now}`);
  if (!answer.ok) {
    say($("chart-note"), `No history: ${(await answer.json()).error}.`);
    state.past = [];
    draw();
    return;
  }
  say($("chart-note"), "");
  const { step, links } = await answer.json();
  const points = new Map();
  for (const [name, moments] of Object.entries(links)) {
    for (const { at, ...values } of moments) {
      if (!points.has(at)) points.set(at, { at_ms: at * 1000, tx_mbps: 0, rx_mbps: 0, links: [] });
      const point = points.get(at);
      point.tx_mbps += values.tx_mbps;
      point.rx_mbps += values.rx_mbps;
      point.links.push({ name, ...values });
    }
  }
  state.step = step;
  state.past = [...points.values()].sort((a, b) => a.at_ms - b.at_ms);
  draw();
}

// ---- links

/** How the state of a link is called and coloured. */
function pill(link) {
  if (link.state !== "up") return [link.state, link.state];
  if (["too-late-for-its-flows", "worth-too-little", "jammed"].includes(link.idle_reason)) return ["left out", "idle"];
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
  const found = rows.filter((row) => wanted === "" || row.join(" ").toLowerCase().includes(wanted));
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
  const rows = live.connections.map((connection) => [
    connection.target, connection.app ?? "–", connection.striped ? "several" : (connection.link ?? "–"),
    connection.why, rateText(connection.rate_mbps), bytes(connection.rx_bytes),
  ]);
  showRows($("connections"), rows, $("connections-filter").value, 6);
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
    const total = live.repair.recovered + live.repair.reinjected;
    const before = state.lastRepair;
    const seconds = before ? (live.at_ms - before.at) / 1000 : 0;
    say($("now-repair"), before && seconds > 0 ? (Math.max(0, total - before.total) / seconds).toFixed(0) : "–");
    state.lastRepair = { at: live.at_ms, total };
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
    state.points.push({ at_ms: live.at_ms, tx_mbps: live.tx_mbps, rx_mbps: live.rx_mbps, links: live.links.map(keep) });
    if (state.points.length > KEPT) state.points.shift();
  }
  say($("headline-text"), live.headline);
  $("headline").firstChild.className = `dot ${live.up ? "up" : "down"}`;
  say($("facts"), live.mode === "equalize" ? `weights ${live.policy}` : `policy ${live.policy}`);
  document.title = `${live.up ? "" : "down: "}${live.name} · pleach`;
  showNow(live);
  showLinks(live);
  showClients(live);
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
