// The picture of the last minutes or days: areas that add up, or a line a link.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8; // custom properties --c0 and so on of the style sheet

function colour(link) {
  if (!state.colours.has(link)) state.colours.set(link, `var(--c${state.colours.size % COLOURS})`);
  return state.colours.get(link);
}

/** What the picture may show: `stack` adds the links up, else each has a line of its own. */
const VIEWS = {
  rx: { name: "Download", title: "Download by link", value: (link) => link.rx_mbps, stack: true, unit: rateText },
  tx: { name: "Upload", title: "Upload by link", value: (link) => link.tx_mbps, stack: true, unit: rateText },
  capacity: { name: "Capacity", title: "Capacity upwards by link", value: (link) => link.capacity_mbps, unit: rateText },
  rtt: { name: "Delay", title: "Round trip by link", value: (link) => link.rtt_ms, unit: millis },
  queue: { name: "Queue", title: "Queue upwards by link", value: (link) => link.queue_delay_ms, unit: millis },
  repair: { name: "Repair", title: "Packets rebuilt or sent again elsewhere", total: (point) => point.repaired_per_s, unit: perSecond },
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
  // A gateway's points have totals alone, and so has repair.
  const isGateway = state.live?.mode === "gateway";
  const total = view.total ?? (isGateway ? (point) => ({ rx: point.rx_mbps, tx: point.tx_mbps })[state.view] : null);
  const links = total ? [isGateway ? "all clients" : "all links"] : names();
  const at = (point, link) => {
    if (total) return total(point) ?? null;
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
  const least = { loss: 0.01, rtt: 1, queue: 1, repair: 10 }[state.view] ?? 0.1;
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
