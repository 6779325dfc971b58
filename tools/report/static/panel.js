// SPDX-License-Identifier: Apache-2.0
// The panel beside the map: a device, a cable, a link with its counters, a flow.
const SHOWN = 40;

class Panel {
  constructor(box, model, map) {
    Object.assign(this, { box, model, map, data: model.data });
  }

  pick(what, { move = false } = {}) {
    if (what && what.kind === "next") what = this.next();
    this.now = what;
    if (!what) { this.map.show([], []); this.write(this.intro()); return; }
    const made = this[what.kind](what.id);
    this.map.show(made.lines, made.boxes, { move });
    this.write(made.parts);
  }

  write(parts) { this.box.replaceChildren(...parts); this.box.scrollTop = 0; }

  intro() {
    return [el("h3", {}, "Nothing chosen"),
      el("p", {}, "Click a cable or a box on the map, search a device, or choose a link in a table."),
      el("p", {}, "On the map: drag or arrow keys move, wheel or + and \u2212 zoom, 0 shows all, n goes to the next busiest cable, Escape lets go.")];
  }

  go(kind, id, text) { return el("button", { class: "go", type: "button", onclick: () => this.pick({ kind, id }, { move: kind !== "link" }) }, text); }

  rows(pairs) {
    return el("table", {}, el("tbody", {}, ...pairs.filter(Boolean).map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "n" }, value)))));
  }

  list(title, head, rows, total) {
    if (!rows.length) return [];
    const more = total > rows.length ? `, ${rows.length} of ${count(total)}` : "";
    return [el("h4", {}, title + more), el("table", {}, el("thead", {}, el("tr", {}, ...head.map((name, i) => el("th", { scope: "col", class: i ? "n" : null }, name)))),
      el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { class: i ? "n" : null }, cell)))))) ];
  }

  next() {
    const order = this.map.lines.map((_, i) => [this.map.lineValue(i), i]).filter(([v]) => v > 0).sort((a, b) => b[0] - a[0]);
    if (!order.length) return null;
    const at = this.now && this.now.kind === "line" ? order.findIndex(([, i]) => i === this.now.id) : -1;
    return { kind: "line", id: order[(at + 1) % order.length][1] };
  }

  line(id) {
    const { cables } = this.map.lines[id], links = cables.flatMap((cable) => [cable, cable + 1]);
    if (cables.length === 1) {
      const [a, b] = this.map.values[links[0]] >= this.map.values[links[1]] ? links : [links[1], links[0]];
      return { lines: [id], boxes: [], parts: [...this.linkParts(a), ...this.linkParts(b)] };
    }
    const [lower, upper] = [this.map.map.boxes[this.map.lines[id].lower], this.map.map.boxes[this.map.lines[id].upper]];
    return { lines: [id], boxes: [], parts: [el("h3", {}, `${lower[5]} \u2013 ${upper[5]}`), el("p", {}, `${count(cables.length)} cables, ${count(links.length)} links`), ...this.linkList("Links, busiest first", links)] };
  }

  linkList(title, links) {
    const v = this.map.values, order = [...links].sort((a, b) => v[b] - v[a]);
    const unit = this.model.measure === "load" ? "load" : this.model.measure === "paused_ps" ? "paused" : "relative";
    return this.list(title, ["link", unit], order.slice(0, SHOWN).map((link) => [this.go("link", link, this.model.name(link)), share(v[link])]), order.length);
  }

  link(id) {
    const line = this.map.lineOf.get(id);
    return { lines: line === undefined ? [] : [line], boxes: [], parts: this.linkParts(id) };
  }

  linkParts(id) {
    const l = this.data.links, flows = this.model.flowsOf.get(id) || [], carried = l.wire[id] + l.ack[id];
    const parts = [el("h3", { "data-link": id }, this.model.name(id)),
      el("p", {}, `${l.tiers[l.tier[id]]}, ${rate(this.model.rates[id])}${this.model.down.has(id) ? ", down" : ""}${(this.model.outages.get(id) || []).map(([a, b]) => `, down from ${time(a)} to ${time(b)}`).join("")} \u00b7 `,
        this.go("device", l.src[id], this.data.devices[l.src[id]]), " \u2192 ", this.go("device", l.dst[id], this.data.devices[l.dst[id]])),
      this.rows([["utilisation, whole run", share(l.used[id])], ["wire bytes", size(l.wire[id])], l.ack[id] ? ["acknowledgements", size(l.ack[id])] : null,
        ["least time for them", time((carried * 8e12) / this.model.rates[id])],
        this.model.bin >= 0 ? ["in the chosen interval", share(this.map.values[id])] : null,
        ...Object.entries(l.counters).map(([name, column]) => { const [said, write] = COUNTERS[name] || [name, count]; return [said, write(column[id])]; })])];
    const series = this.model.series(id);
    if (series && series.some((v) => v > 0)) parts.push(el("h4", {}, `${this.model.recorded ? "Load over time" : "Load over time, from flows at their mean rates"}, peak ${share(Math.max(...series))}`), this.spark(series, this.model.recorded && this.model.paused ? this.model.series(id, this.model.paused) : null));
    return [...parts, ...this.flowList(flows.map(([flow]) => flow))];
  }

  spark(series, paused) {
    const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg"), n = series.length;
    svg.setAttribute("viewBox", `0 0 ${n} 50`); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `load over time, at most ${share(Math.max(...series))}`);
    const bar = (i, value, fill) => {
      const box = document.createElementNS(ns, "rect");
      for (const [key, given] of Object.entries({ x: i, y: 50 - 50 * value, width: 1, height: 50 * value, fill })) box.setAttribute(key, given);
      svg.append(box);
    };
    const most = Math.max(...series);
    series.forEach((value, i) => { bar(i, 1, i === this.model.bin ? "var(--idle)" : "var(--line)"); bar(i, value / most, "var(--accent)"); });
    if (paused) paused.forEach((value, i) => bar(i, value * 0.25, "var(--bad)"));
    return svg;
  }

  flowList(flows) {
    const f = this.data.flows, chosen = flows.filter((i) => this.model.tag < 0 || f.tag[i] === this.model.tag);
    const order = [...new Set(chosen)].sort((a, b) => f.wire[b] - f.wire[a]);
    return this.list("Flows, largest first", ["flow", "size", "time", "bound"], order.slice(0, SHOWN).map((i) => [this.go("flow", i, f.id[i]), size(f.size[i]),
      f.end[i] < 0 ? "not ended" : time(f.end[i] - f.start[i]), time(f.bound[i])]), order.length);
  }

  flow(id) {
    const f = this.data.flows, links = f.links[id], lines = [...new Set(links.map((link) => this.map.lineOf.get(link)).filter((i) => i !== undefined))];
    const used = this.data.links.used, hottest = links.reduce((a, b) => (used[b] > (a < 0 ? -1 : used[a]) ? b : a), -1);
    const name = (device) => (device >= 0 ? this.go("device", device, this.data.devices[device]) : "?");
    const parts = [el("h3", {}, f.id[id]), el("p", {}, name(f.src[id]), " \u2192 ", name(f.dst[id])),
      this.rows([f.tags[f.tag[id]] ? ["class", f.tags[f.tag[id]]] : null, ["size", size(f.size[id])], ["on the wire", size(f.wire[id])], ["start", time(f.start[id])],
        ["time", f.end[id] < 0 ? "not ended" : time(f.end[id] - f.start[id])], ["lower bound", time(f.bound[id])],
        f.end[id] >= 0 && f.bound[id] ? ["times its bound", ((f.end[id] - f.start[id]) / f.bound[id]).toFixed(3)] : null,
        ...Object.entries(f.counters).map(([key, column]) => (column[id] !== "" ? [key.replaceAll("_", " "), column[id]] : null))])];
    if (hottest >= 0) parts.push(el("p", {}, "Busiest link of its path: ", this.go("link", hottest, this.model.name(hottest)), ` ${share(used[hottest])}`));
    const head = this.model.recorded || links.length ? "Path" : "Path not known";
    return { lines, boxes: [], parts: [...parts, ...this.list(head, ["link", "utilisation"], links.slice(0, SHOWN).map((link) => [this.go("link", link, this.model.name(link)), share(used[link])]), links.length)] };
  }

  device(id) {
    const l = this.data.links, links = [], host = this.data.hostOf[id];
    for (let i = 0; i < this.model.links; i++) if (l.src[i] === id || l.dst[i] === id) links.push(i);
    const box = this.map.boxOf.get(host >= 0 ? `h${host}` : `d${id}`), model = this.data.model.length ? this.data.models[this.data.model[id]] : "";
    const f = this.data.flows, flows = f.id.map((_, i) => i).filter((i) => f.src[i] === id || f.dst[i] === id);
    const lines = [...new Set(links.map((link) => this.map.lineOf.get(link)).filter((i) => i !== undefined))];
    return { lines: lines.slice(0, 400), boxes: box === undefined ? [] : [box], parts: [el("h3", {}, this.data.devices[id]),
      el("p", {}, [model, `${count(links.length)} links`].filter(Boolean).join(" \u00b7 "), host >= 0 ? " \u00b7 in " : "", host >= 0 ? this.go("host", host, this.data.hosts[host]) : ""),
      ...this.linkList("Links", links), ...this.flowList(flows)] };
  }

  host(id) {
    const parts = this.data.hostOf.map((host, device) => (host === id ? device : -1)).filter((device) => device >= 0), own = new Set(parts), l = this.data.links, links = [];
    for (let i = 0; i < this.model.links; i++) if (this.model.network[i] && (own.has(l.src[i]) || own.has(l.dst[i]))) links.push(i);
    const f = this.data.flows, flows = f.id.map((_, i) => i).filter((i) => own.has(f.src[i]) || own.has(f.dst[i])), box = this.map.boxOf.get(`h${id}`);
    const lines = [...new Set(links.map((link) => this.map.lineOf.get(link)).filter((i) => i !== undefined))];
    return { lines, boxes: box === undefined ? [] : [box], parts: [el("h3", {}, this.data.hosts[id]), el("p", {}, `${count(parts.length)} devices: `, ...parts.slice(0, SHOWN).flatMap((device) => [this.go("device", device, this.data.devices[device]), " "])),
      ...this.linkList("Network links", links), ...this.flowList(flows)] };
  }

  box(id) {
    const [level, , , , , name, , , , members] = this.map.map.boxes[id];
    if (members.length === 1) return this[level ? "device" : "host"](members[0]);
    const names = level ? this.data.devices : this.data.hosts, lines = this.map.lines.map((line, i) => (line.lower === id || line.upper === id ? i : -1)).filter((i) => i >= 0);
    return { lines, boxes: [id], parts: [el("h3", {}, name), ...this.list(level ? "Switches" : "Hosts", ["name"], members.slice(0, 200).map((m) => [this.go(level ? "device" : "host", m, names[m])]), members.length)] };
  }
}
