// SPDX-License-Identifier: Apache-2.0
// The data of the page, and how numbers are written. Text from files only ever becomes text nodes.
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function el(name, given, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given || {})) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function scaled(value, units, digits = 4) {
  for (const [unit, factor] of units) {
    if (value >= factor) return `${Number((value / factor).toPrecision(digits))} ${unit}`;
  }
  return `${Number(value.toPrecision(digits))} ${units[units.length - 1][0]}`;
}
const time = (ps) => scaled(ps, [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3], ["ps", 1]]);
const size = (b) => scaled(b, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const rate = (bps) => scaled(bps, [["Tbps", 1e12], ["Gbps", 1e9], ["Mbps", 1e6], ["kbps", 1e3], ["bps", 1]]);
const share = (v) => (v > 0 && v < 0.001 ? "<0.1 %" : `${(100 * v).toFixed(1)} %`);
const count = (n) => n.toLocaleString("en-US");

const COUNTERS = {
  pause_frames_sent: ["pause frames sent", count], pause_frames_received: ["pause frames received", count],
  paused_ps: ["paused", time], ecn_marked: ["frames marked (ECN)", count], dropped: ["frames dropped", count],
  peak_queue_bytes: ["peak of the egress queue", size], peak_ingress_bytes: ["peak of the ingress buffer", size],
};
