// SPDX-License-Identifier: Apache-2.0
// What each link shows: load, pauses, marks or drops, of a class of traffic, at a time or on the whole.
class Model {
  constructor(data) {
    this.data = data;
    this.links = data.links.src.length;
    this.rates = Float64Array.from(data.links.rate, (i) => data.links.rates[i]);
    this.network = new Uint8Array(this.links);
    for (const cable of data.links.network) this.network[2 * cable] = this.network[2 * cable + 1] = 1;
    this.down = new Set(data.links.down);
    this.outages = new Map();
    for (const [link, from, to] of data.outages) this.outages.set(link, [...(this.outages.get(link) || []), [from, to]]);
    this.measure = "load"; this.tag = -1; this.bin = -1;
    this.flowsOf = new Map();
    data.flows.links.forEach((links, flow) => links.forEach((link, place) => {
      if (!this.flowsOf.has(link)) this.flowsOf.set(link, []);
      this.flowsOf.get(link).push([flow, data.flows.shares[flow][place] ?? 1]);
    }));
    const line = data.timeline;
    this.recorded = line !== null;
    if (line) {
      this.edges = line.edges;
      this.load = bytesOf(line.load);
      this.paused = line.paused ? bytesOf(line.paused) : null;
      this.row = new Map(line.links.map((link, i) => [link, i]));
    } else if (this.flowsOf.size && data.span > 0) {
      this.edges = Array.from({ length: 97 }, (_, i) => (data.span * i) / 96);
    } else this.edges = [];
  }

  get bins() { return Math.max(0, this.edges.length - 1); }

  name(link) {
    const l = this.data.links, d = this.data.devices;
    return `${d[l.src[link]]}:${l.srcPort[link]}>${d[l.dst[link]]}:${l.dstPort[link]}`;
  }

  // Whether a link is down: all the time, or at some instant of the chosen interval.
  isDown(link) {
    if (this.down.has(link)) return true;
    if (this.bin < 0) return false;
    const [from, to] = this.window;
    return (this.outages.get(link) || []).some(([a, b]) => a < to && b > from);
  }

  get window() {
    return this.bin < 0 ? [0, this.data.span] : [this.edges[this.bin], this.edges[this.bin + 1]];
  }

  // Share of the rate of each link that flows of a class used in a window: each at its mean rate.
  ofFlows(link, tag, [from, to]) {
    const flows = this.data.flows;
    let bytes = 0;
    for (const [flow, part] of this.flowsOf.get(link) || []) {
      if (tag >= 0 && flows.tag[flow] !== tag) continue;
      const start = flows.start[flow], end = flows.end[flow] < 0 ? this.data.span : flows.end[flow];
      const both = Math.min(to, end) - Math.max(from, start);
      if (both > 0 && end > start) bytes += (flows.wire[flow] * part * both) / (end - start);
    }
    return to > from ? Math.min(1, (bytes * 8) / (this.rates[link] * ((to - from) / 1e12))) : 0;
  }

  values() {
    const found = new Float64Array(this.links), l = this.data.links, window = this.window;
    if (this.measure === "load" && (this.tag >= 0 || (this.bin >= 0 && !this.recorded))) {
      for (const link of this.flowsOf.keys()) found[link] = this.ofFlows(link, this.tag, window);
    } else if (this.measure === "load" && this.bin < 0) found.set(l.used);
    else if (this.measure === "load" || (this.measure === "paused_ps" && this.bin >= 0)) {
      const kept = this.measure === "load" ? this.load : this.paused;
      if (kept) for (const [link, row] of this.row) found[link] = kept[row * this.bins + this.bin] / 255;
    } else {
      const column = l.counters[this.measure] || [];
      const most = this.measure === "paused_ps" ? this.data.span : column.reduce((a, b) => Math.max(a, b), 1);
      column.forEach((value, link) => { found[link] = Math.min(1, value / most); });
    }
    return found;
  }

  // Load of a link over time, a share for each bin; null where nobody knows.
  series(link, kept) {
    if (!this.bins) return null;
    if (this.recorded) {
      const row = this.row.get(link);
      const bytes = kept || this.load;
      return Array.from({ length: this.bins }, (_, k) => (row === undefined ? 0 : bytes[row * this.bins + k] / 255));
    }
    return kept === null ? null : Array.from({ length: this.bins }, (_, k) => this.ofFlows(link, -1, [this.edges[k], this.edges[k + 1]]));
  }

  get meaning() {
    if (this.measure === "ecn_marked" || this.measure === "dropped") return "frames over the whole run, relative to the link with most";
    const what = this.measure === "load" ? "share of the link's rate" : "share of the time that the link stood paused";
    if (this.measure === "load" && (this.tag >= 0 || (this.bin >= 0 && !this.recorded))) return `${what}, from flows, each at its mean rate`;
    return what;
  }
}
