// SPDX-License-Identifier: Apache-2.0
// The fabric on a canvas: zoom, pan, colours by value, and what lies under the pointer.
const STEPS = 28;

class FabricMap {
  constructor(canvas, model, onPick) {
    Object.assign(this, { canvas, model, onPick, picked: new Set(), pickedBoxes: new Set(), k: 1, x: 0, y: 0 });
    this.map = model.data.map;
    this.ink = canvas.getContext("2d");
    this.lineOf = new Map();
    this.boxOf = new Map();
    this.lines = this.map.lines.map(([lower, upper, x1, y1, x2, y2, arch, rail, plane, cables], i) => {
      for (const cable of cables) { this.lineOf.set(cable, i); this.lineOf.set(cable + 1, i); }
      const lift = arch ? 0 : (y1 - y2) * 0.42, top = Math.min(y1, y2) - (arch * 4) / 3;
      return { lower, upper, cables, c: arch ? [x1, y1, x1, top, x2, top, x2, y2] : [x1, y1, x1, y1 - lift, x2, y2 + lift, x2, y2] };
    });
    this.map.boxes.forEach((box, i) => box[9].forEach((member) => this.boxOf.set(`${box[0] ? "d" : "h"}${member}`, i)));
    const ends = this.map.boxes.flatMap((b) => [[b[1], b[2]], [b[1] + b[3], b[2] + b[4]]]);
    const xs = ends.map((e) => e[0]), ys = ends.map((e) => e[1]);
    const least = (a) => a.reduce((p, q) => Math.min(p, q), Infinity), most = (a) => a.reduce((p, q) => Math.max(p, q), -Infinity);
    this.bounds = ends.length ? [least(xs), least(ys), most(xs), most(ys)] : [0, 0, 1, 1];
    this.listen();
    this.refresh();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  refresh() { this.values = this.model.values(); this.draw(); }

  resize() {
    const box = this.canvas.getBoundingClientRect(), dots = window.devicePixelRatio || 1;
    if (this.frozen || !box.width || !box.height) return;
    const first = !this.width;
    const middle = first ? null : this.toWorld(this.width / 2, this.height / 2);
    Object.assign(this, { width: box.width, height: box.height, dots });
    this.canvas.width = Math.round(box.width * dots);
    this.canvas.height = Math.round(box.height * dots);
    if (first) this.fit(); else this.centre(...middle, this.k);
  }

  // Draws everything anew on a sheet of another shape, for paper, until `thaw`.
  freeze(width, height) {
    this.frozen = [this.x, this.y, this.k];
    Object.assign(this, { width, height, dots: 2 });
    this.canvas.width = 2 * width;
    this.canvas.height = 2 * height;
    this.fit();
    this.paint();
  }

  thaw() {
    if (!this.frozen) return;
    [this.x, this.y, this.k] = this.frozen;
    this.frozen = null;
    this.width = this.canvas.getBoundingClientRect().width;
    this.height = this.canvas.getBoundingClientRect().height;
    this.resize();
  }

  fit() {
    const [x1, y1, x2, y2] = this.bounds;
    const names = this.width < 600 ? 0 : 76; // room at the left for the names of the tiers
    const k = Math.min((this.width - 40 - names) / Math.max(1, x2 - x1), (this.height - 60) / Math.max(1, y2 - y1));
    this.least = Math.min(k * 0.6, 1);
    this.centre((x1 + x2) / 2 - names / 2 / Math.min(k, 2.5), (y1 + y2) / 2, Math.min(k, 2.5));
  }

  centre(x, y, k) {
    this.k = Math.max(this.least || 0.01, Math.min(24, k));
    this.x = this.width / 2 - x * this.k;
    this.y = this.height / 2 - y * this.k;
    this.draw();
  }

  zoom(factor, sx = this.width / 2, sy = this.height / 2) {
    const k = Math.max(this.least || 0.01, Math.min(24, this.k * factor));
    this.x = sx - ((sx - this.x) * k) / this.k;
    this.y = sy - ((sy - this.y) * k) / this.k;
    this.k = k;
    this.draw();
  }

  pan(dx, dy) { this.x += dx; this.y += dy; this.draw(); }
  toWorld(sx, sy) { return [(sx - this.x) / this.k, (sy - this.y) / this.k]; }
  toScreen(x, y) { return [x * this.k + this.x, y * this.k + this.y]; }

  pointOn(line, t) {
    const c = this.lines[line].c, u = 1 - t, w = [u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t];
    return [0, 1].map((i) => w[0] * c[i] + w[1] * c[2 + i] + w[2] * c[4 + i] + w[3] * c[6 + i]);
  }

  lineValue(line) {
    let most = 0;
    for (const cable of this.lines[line].cables) most = Math.max(most, this.values[cable], this.values[cable + 1]);
    return most;
  }

  draw() {
    if (!this.width || this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.paint(); });
  }

  colours() {
    const style = getComputedStyle(root), of = (name) => style.getPropertyValue(name).trim();
    const ramp = [0, 1, 2, 3, 4, 5].map((i) => of(`--r${i}`)).map((c) => [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16)));
    const table = Array.from({ length: 65 }, (_, i) => {
      const place = Math.sqrt(i / 64) * 5, low = Math.min(4, Math.floor(place)), part = place - low;
      return `rgb(${ramp[low].map((a, j) => Math.round(a + (ramp[low + 1][j] - a) * part)).join(",")})`;
    });
    return { ramp: (v) => (v > 0 ? table[Math.max(1, Math.round(v * 64))] : of("--idle")), ground: of("--ground"), box: of("--box"),
      edge: of("--edge"), ink: of("--ink"), muted: of("--muted"), pick: of("--pick"), bad: of("--bad") };
  }

  paint() {
    const g = this.ink, look = this.colours(), { k, lines } = this;
    g.setTransform(this.dots, 0, 0, this.dots, 0, 0);
    g.fillStyle = look.ground;
    g.fillRect(0, 0, this.width, this.height);
    g.setTransform(this.dots * k, 0, 0, this.dots * k, this.dots * this.x, this.dots * this.y);
    const dense = 1 + 0.12 * Math.max(0, Math.log2(lines.length / 64));
    const order = lines.map((_, i) => [this.lineValue(i), i]).sort((a, b) => a[0] - b[0]);
    const some = this.picked.size > 0;
    for (const [value, i] of order) {
      const down = lines[i].cables.some((cable) => this.model.isDown(cable) || this.model.isDown(cable + 1));
      g.globalAlpha = (value > 0 ? 0.92 : lines.length > 1500 ? 0.22 : 0.55) * (some && !this.picked.has(i) ? 0.3 : 1);
      this.stroke(i, down ? look.bad : look.ramp(value), (0.9 + (3.4 * Math.sqrt(value)) / dense) / Math.sqrt(k), down);
    }
    g.globalAlpha = 1;
    for (const i of this.picked) {
      this.stroke(i, look.pick, 5.5 / Math.sqrt(k), false);
      this.stroke(i, look.ramp(this.lineValue(i)), 2.4 / Math.sqrt(k), false);
    }
    this.paintBoxes(g, look);
    this.paintTiers(g, look);
  }

  stroke(i, colour, width, dashed) {
    const g = this.ink, c = this.lines[i].c;
    g.strokeStyle = colour; g.lineWidth = width;
    g.setLineDash(dashed ? [6, 4] : []);
    g.beginPath(); g.moveTo(c[0], c[1]); g.bezierCurveTo(...c.slice(2)); g.stroke();
    g.setLineDash([]);
  }

  // The value of a box or cell: that of the busiest network link of its devices.
  deviceValues() {
    const found = new Float64Array(this.model.data.devices.length), l = this.model.data.links;
    for (let link = 0; link < this.model.links; link++) {
      if (!this.model.network[link]) continue;
      for (const end of [l.src[link], l.dst[link]]) if (this.values[link] > found[end]) found[end] = this.values[link];
    }
    return found;
  }

  paintBoxes(g, look) {
    const { k } = this, values = this.deviceValues(), [left, top] = this.toWorld(0, 0), [right, bottom] = this.toWorld(this.width, this.height);
    const hosts = new Float64Array(this.model.data.hosts.length);
    this.model.data.hostOf.forEach((host, device) => { if (host >= 0 && values[device] > hosts[host]) hosts[host] = values[device]; });
    const railed = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#a39300", "#7a7a7a"];
    this.map.boxes.forEach(([level, x, y, w, h, name, rail, plane, text, members], i) => {
      if (x > right || x + w < left || y > bottom || y + h < top) return;
      g.beginPath(); g.roundRect(x, y, w, h, Math.min(4, w / 4));
      g.fillStyle = look.box; g.fill();
      g.strokeStyle = this.pickedBoxes.has(i) ? look.pick : rail >= 0 ? railed[rail % 8] : look.edge;
      g.lineWidth = (this.pickedBoxes.has(i) ? 4 : 1.3) / Math.max(0.6, Math.sqrt(k));
      g.stroke();
      const of = level ? values : hosts, shown = members.map((m) => of[m]);
      if (!level && members.length > 1 && text.length === 1) this.stack(g, look, x, y, w, h, shown);
      else if (members.length > 1) this.strip(g, look, x, y + h, w, shown);
      else if (level) { g.fillStyle = look.ramp(shown[0]); g.fillRect(x + 1, y + h - 4, w - 2, 3); }
      if (level || text.length > 1) this.label(g, look, text, x, y, w, h - (members.length > 1 ? 6 : 4));
      else if (members.length === 1 || k * w > 40) this.under(g, look, name, x + w / 2, y + h, w);
    });
    for (const [device, x, y, w, h] of this.map.parts) {
      if (x > right || x + w < left || y > bottom || y + h < top) continue;
      g.fillStyle = look.ramp(values[device]);
      g.fillRect(x + 0.4, y, w - 0.8, h);
    }
  }

  stack(g, look, x, y, w, h, shown) {
    const row = (h - 6) / shown.length;
    shown.forEach((value, i) => { g.fillStyle = look.ramp(value); g.fillRect(x + 2, y + 3 + i * row, w - 4, row * 0.86); });
  }

  strip(g, look, x, bottom, w, shown) {
    const sorted = shown.sort((a, b) => b - a), n = Math.min(sorted.length, 32), cell = (w - 4) / n;
    for (let i = 0; i < n; i++) {
      g.fillStyle = look.ramp(sorted[Math.round((i * (sorted.length - 1)) / Math.max(1, n - 1))]);
      g.fillRect(x + 2 + i * cell, bottom - 7, cell, 5);
    }
  }

  label(g, look, lines, x, y, w, h) {
    const size = Math.min(12 * this.map.scale, h / (lines.length * 1.3));
    g.font = `${size}px system-ui, sans-serif`;
    g.fillStyle = look.ink; g.textAlign = "center"; g.textBaseline = "middle";
    const widest = Math.max(...lines.map((line) => g.measureText(line).width));
    if (widest <= w - 3) {
      if (size * this.k >= 5.5) lines.forEach((line, i) => g.fillText(line, x + w / 2, y + h / 2 + (i - (lines.length - 1) / 2) * size * 1.25));
      return;
    }
    const tall = Math.min(w * 0.75, 12 * this.map.scale), whole = lines.join(" \u00b7 ");
    g.font = `${tall}px system-ui, sans-serif`;
    const fits = g.measureText(whole).width;
    const fitted = fits > h - 4 && h > w ? (tall * (h - 4)) / fits : tall;
    if (fitted * this.k < 5.5) return;
    if (h > w) {
      g.font = `${fitted}px system-ui, sans-serif`;
      g.save(); g.translate(x + w / 2, y + h / 2); g.rotate(-Math.PI / 2); g.fillText(whole, 0, 0); g.restore();
    } else {
      const small = (size * (w - 3)) / widest;
      if (small * this.k < 5.5) return;
      g.font = `${small}px system-ui, sans-serif`;
      lines.forEach((line, i) => g.fillText(line, x + w / 2, y + h / 2 + (i - (lines.length - 1) / 2) * small * 1.25));
    }
  }

  under(g, look, name, x, y, w) {
    g.font = `${11 * this.map.scale}px system-ui, sans-serif`;
    const wide = g.measureText(name).width, size = Math.min(11 * this.map.scale, (11 * this.map.scale * (w + 4)) / wide);
    if (size * this.k < 5.5) return;
    g.font = `${size}px system-ui, sans-serif`;
    g.fillStyle = look.muted; g.textAlign = "center"; g.textBaseline = "top";
    g.fillText(name, x, y + 4);
  }

  paintTiers(g, look) {
    g.setTransform(this.dots, 0, 0, this.dots, 0, 0);
    g.font = "12px system-ui, sans-serif"; g.textAlign = "left"; g.textBaseline = "middle";
    for (const [name, y, n] of this.map.tiers) {
      const at = Math.round(y * this.k + this.y) - 14, text = `${name} \u00b7 ${count(n)}`, wide = g.measureText(text).width;
      if (at < 8 || at > this.height - 8) continue;
      g.globalAlpha = 0.82; g.fillStyle = look.ground; g.fillRect(6, at - 9, wide + 8, 18); g.globalAlpha = 1;
      g.fillStyle = look.muted; g.fillText(text, 10, at);
    }
  }

  hit(sx, sy) {
    const [x, y] = this.toWorld(sx, sy);
    const part = this.k > 0.8 ? this.map.parts.find(([, px, py, w, h]) => x >= px && x <= px + w && y >= py && y <= py + h) : null;
    if (part) return { kind: "device", id: part[0] };
    const box = this.map.boxes.findIndex(([, bx, by, w, h]) => x >= bx && x <= bx + w && y >= by && y <= by + h);
    if (box >= 0) return { kind: "box", id: box };
    let best = null, near = 9;
    this.lines.forEach(({ c }, i) => {
      const margin = 10 / this.k;
      if (Math.min(c[0], c[6]) - margin > x || Math.max(c[0], c[6]) + margin < x || Math.min(c[1], c[3], c[7]) - margin > y || Math.max(c[1], c[7]) + margin < y) return;
      let [px, py] = this.toScreen(c[0], c[1]);
      for (let s = 1; s <= STEPS; s++) {
        const [qx, qy] = this.toScreen(...this.pointOn(i, s / STEPS)), dx = qx - px, dy = qy - py, long = dx * dx + dy * dy;
        const t = long ? Math.max(0, Math.min(1, ((sx - px) * dx + (sy - py) * dy) / long)) : 0;
        const away = Math.hypot(sx - px - t * dx, sy - py - t * dy) - Math.min(3, 3 * this.lineValue(i));
        if (away < near) { near = away; best = i; }
        [px, py] = [qx, qy];
      }
    });
    return best === null ? null : { kind: "line", id: best };
  }

  show(lines, boxes, { move = false } = {}) {
    this.picked = new Set(lines); this.pickedBoxes = new Set(boxes);
    if (move && this.width) {
      const points = [...boxes.flatMap((i) => { const b = this.map.boxes[i]; return [[b[1], b[2]], [b[1] + b[3], b[2] + b[4]]]; }),
        ...lines.flatMap((i) => [this.pointOn(i, 0), this.pointOn(i, 1)])];
      if (points.length) {
        const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
        const x1 = Math.min(...xs), x2 = Math.max(...xs), y1 = Math.min(...ys), y2 = Math.max(...ys);
        const k = Math.min((this.width - 120) / Math.max(60, x2 - x1), (this.height - 120) / Math.max(60, y2 - y1), 2);
        this.centre((x1 + x2) / 2, (y1 + y2) / 2, Math.min(k, Math.max(this.k, 0.9)));
      }
    }
    this.draw();
  }

  listen() {
    const canvas = this.canvas, held = new Map();
    let moved = 0, apart = 0;
    const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(Math.exp(-event.deltaY * 0.0016), ...at(event)); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { held.set(event.pointerId, at(event)); moved = 0; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      const now = at(event), last = held.get(event.pointerId);
      if (!last) { const hit = this.hit(...now); canvas.style.cursor = hit ? "pointer" : "grab"; return; }
      if (held.size === 1) { this.pan(now[0] - last[0], now[1] - last[1]); moved += Math.abs(now[0] - last[0]) + Math.abs(now[1] - last[1]); }
      held.set(event.pointerId, now);
      if (held.size === 2) {
        const [a, b] = [...held.values()], far = Math.hypot(a[0] - b[0], a[1] - b[1]);
        if (apart) this.zoom(far / apart, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        apart = far; moved = 99;
      }
    });
    const let_go = (event) => { held.delete(event.pointerId); apart = 0; };
    canvas.addEventListener("pointerup", (event) => { let_go(event); if (moved < 5) this.onPick(this.hit(...at(event))); });
    canvas.addEventListener("pointercancel", let_go);
    canvas.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => this.pan(60, 0), ArrowRight: () => this.pan(-60, 0), ArrowUp: () => this.pan(0, 60), ArrowDown: () => this.pan(0, -60),
        "+": () => this.zoom(1.3), "=": () => this.zoom(1.3), "-": () => this.zoom(1 / 1.3), 0: () => this.fit(),
        n: () => this.onPick({ kind: "next" }), Escape: () => this.onPick(null) }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
    });
  }
}
