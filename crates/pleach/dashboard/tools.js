// Elements, numbers with units, and what all parts of the page know.
"use strict";

const KEPT = 300; // points of the pictures: five minutes
const $ = (id) => document.getElementById(id);

const state = {
  token: "",
  mayChange: false,
  points: [], // as /v1/past has them
  colours: new Map(), // link -> custom property
  view: "rx",
  live: null,
  range: 0, // seconds of the picture; 0: the points
  past: [], // points of the history, if a range is chosen
  step: 1, // seconds between two of them
};

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
const perSecond = (count) => (count === null || count === undefined ? "–" : `${count.toFixed(0)} /s`);
const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.001 ? 2 : 1)} %`;
const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
