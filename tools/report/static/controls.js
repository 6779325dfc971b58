// SPDX-License-Identifier: Apache-2.0
// Search, time slider, class and measure of the map; sorting and filtering of tables; the theme.
function searchBox(model, panel) {
  const input = byId("search"), list = byId("found"), data = model.data;
  let hits = [], at = 0;
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); };
  const choose = (hit) => { close(); if (hit) panel.pick({ kind: hit.kind, id: hit.id }, { move: true }); };
  const find = () => {
    const asked = input.value.trim().toLowerCase();
    const groups = [["host", data.hosts, "host"], ["device", data.devices, "device"], ["flow", data.flows.id, "flow"]];
    hits = [];
    if (asked) for (const rank of [0, 1, 2]) for (const [kind, names, said] of groups) names.forEach((name, id) => {
      const low = name.toLowerCase(), found = low === asked ? 0 : low.startsWith(asked) ? 1 : low.includes(asked) ? 2 : 3;
      if (found === rank && hits.length < 12) hits.push({ kind, id, name, said });
    });
    at = 0;
    list.replaceChildren(...(hits.length ? hits.map((hit, i) => el("li", { role: "presentation" }, el("button", { type: "button", role: "option", tabindex: "-1", "aria-selected": String(i === 0), onclick: () => choose(hit) }, hit.name, el("small", {}, hit.said))))
      : [el("li", {}, el("small", {}, "nothing of that name"))]));
    list.hidden = !asked;
    input.setAttribute("aria-expanded", String(!!asked));
  };
  input.addEventListener("input", find);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); choose(hits[at]); }
    if (event.key === "Escape") { input.value = ""; close(); }
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : hits.length - 1)) % Math.max(1, hits.length);
      list.querySelectorAll("button").forEach((button, i) => { button.setAttribute("aria-selected", String(i === at)); if (i === at) button.scrollIntoView({ block: "nearest" }); });
    }
  });
  document.addEventListener("click", (event) => { if (!event.target.closest(".search")) close(); });
}

function mapControls(model, map, panel) {
  const slider = byId("time"), said = byId("when"), play = byId("play"), tag = byId("class"), measure = byId("measure");
  const again = () => {
    map.refresh();
    byId("meaning").textContent = model.meaning;
    if (panel.now) panel.pick(panel.now);
  };
  const show = () => {
    model.bin = Number(slider.value) - 1;
    const [from, to] = model.window;
    said.textContent = model.bin < 0 ? `whole run, ${time(model.data.span)}` : `${time(from)} to ${time(to)}`;
    slider.setAttribute("aria-valuetext", said.textContent);
    again();
  };
  slider.max = model.bins;
  slider.disabled = play.disabled = !model.bins;
  slider.addEventListener("input", show);
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; play.setAttribute("aria-pressed", "false"); };
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    play.textContent = "Stop"; play.setAttribute("aria-pressed", "true");
    if (Number(slider.value) >= model.bins) slider.value = 0;
    timer = setInterval(() => { if (Number(slider.value) >= model.bins) { stop(); return; } slider.value = Number(slider.value) + 1; show(); }, 120);
  });
  model.data.flows.tags.forEach((name, i) => tag.append(el("option", { value: i }, name || "no class")));
  tag.closest("label").hidden = model.data.flows.id.length === 0;
  tag.addEventListener("change", () => { model.tag = Number(tag.value); filterTables(); again(); });
  for (const [value, name] of [["paused_ps", "pauses"], ["ecn_marked", "ECN marks"], ["dropped", "drops"]]) if (model.data.links.counters[value]) measure.append(el("option", { value }, name));
  measure.closest("label").hidden = measure.options.length < 2;
  measure.addEventListener("change", () => { model.measure = measure.value; again(); });
  byId("zoom-in").addEventListener("click", () => map.zoom(1.4));
  byId("zoom-out").addEventListener("click", () => map.zoom(1 / 1.4));
  byId("fit").addEventListener("click", () => map.fit());
  show();
}

function filterTables() {
  const tag = byId("class").value, tags = [...byId("class").options].find((option) => option.value === tag);
  document.querySelectorAll("table.sortable").forEach((table) => {
    const filter = document.querySelector(`[data-filter="${table.id}"]`), asked = filter ? filter.value.trim().toLowerCase() : "";
    for (const row of table.tBodies[0].rows) {
      const off = "tag" in row.dataset && tag !== "-1" && row.dataset.tag !== (tags.textContent === "no class" ? "" : tags.textContent);
      row.hidden = off || (asked !== "" && !row.textContent.toLowerCase().includes(asked));
    }
  });
}

function tables(panel) {
  const value = (row, column) => { const cell = row.cells[column], given = cell.dataset.v; return given === undefined ? cell.textContent : given === "" ? -Infinity : Number(given); };
  document.querySelectorAll("table.sortable").forEach((table) => table.querySelectorAll("thead button").forEach((button, column) => button.addEventListener("click", () => {
    const head = button.closest("th"), down = head.getAttribute("aria-sort") !== "descending" && (head.classList.contains("n") || head.getAttribute("aria-sort") === "ascending");
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map((row, i) => [value(row, column), i, row]);
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    rows.sort((a, b) => (down ? -1 : 1) * compare(a[0], b[0]) || a[1] - b[1]);
    table.tBodies[0].append(...rows.map((row) => row[2]));
  })));
  document.querySelectorAll("[data-filter]").forEach((input) => input.addEventListener("input", filterTables));
  document.querySelectorAll("[data-go]").forEach((button) => button.addEventListener("click", () => {
    panel.pick({ kind: button.dataset.go, id: Number(button.dataset.id) }, { move: true });
    byId("fabric").scrollIntoView({ block: "start" });
    byId("map").focus({ preventScroll: true });
  }));
}

function theme(map) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const say = () => { byId("theme").textContent = now() === "dark" ? "Light" : "Dark"; };
  byId("theme").addEventListener("click", () => { root.dataset.theme = now() === "dark" ? "light" : "dark"; say(); map.draw(); });
  dark.addEventListener("change", () => { say(); map.draw(); });
  window.addEventListener("beforeprint", () => { root.dataset.theme ||= now(); root.dataset.kept = root.dataset.theme; root.dataset.theme = "light"; map.freeze(1000, 270); });
  window.addEventListener("afterprint", () => { root.dataset.theme = root.dataset.kept; map.thaw(); map.draw(); });
  say();
}

async function start() {
  let data;
  try { data = await unpack(byId("payload").textContent); } catch (error) {
    byId("panel").replaceChildren(el("p", {}, `This browser cannot unpack the data of the page: ${error}`));
    return;
  }
  const model = new Model(data), panel = new Panel(byId("panel"), model, null);
  panel.map = new FabricMap(byId("map"), model, (what) => panel.pick(what));
  searchBox(model, panel);
  mapControls(model, panel.map, panel);
  tables(panel);
  theme(panel.map);
  panel.pick(null);
  window.railweave = { model, map: panel.map, panel };
  root.dataset.ready = "yes";
}

start();
