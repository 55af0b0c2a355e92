// The picture of turns on the page about fairness, to play with: three tenants, their weights, and a consumer.
// Without this script the page shows the picture itself.
"use strict";

const TENANTS = [
  { name: "globex", weight: 1, backlog: 30 },
  { name: "acme", weight: 1, backlog: 6 },
  { name: "bolt", weight: 1, backlog: 1 },
];
const SERVED_SHOWN = 48;
const BACKLOG_SHOWN = 30;
const BACKLOG_MAX = 200;
const PAUSE_MS = 400;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Both orders in a few lines. The broker's own scheduler has costs and debts besides: see the page.
class Line {
  constructor() {
    this.arrived = []; // tenants by arrival
    this.ring = []; // tenants with messages, the next one first
    this.left = 0; // messages that the first of the ring may still send in this turn
    this.pending = TENANTS.map(() => 0);
  }

  // A tenant that had nothing to deliver is served next.
  add(tenant, count, place = this.left > 0 ? 1 : 0) {
    for (let number = 0; number < count && this.pending[tenant] < BACKLOG_MAX; number++) {
      if (this.pending[tenant]++ === 0) this.ring.splice(place, 0, tenant);
      this.arrived.push(tenant);
    }
  }

  next(byTurns, weights) {
    if (this.ring.length === 0) return null;
    const tenant = byTurns ? this.ring[0] : this.arrived[0];
    this.arrived.splice(this.arrived.indexOf(tenant), 1);
    this.pending[tenant]--;
    if (byTurns) this.left = (this.left > 0 ? this.left : weights[tenant]) - 1;
    if (this.pending[tenant] === 0) {
      if (this.ring[0] === tenant) this.left = 0;
      this.ring.splice(this.ring.indexOf(tenant), 1);
    } else if (byTurns && this.left === 0) {
      this.ring.push(this.ring.shift());
    }
    return tenant;
  }
}

function play(picture) {
  const line = new Line();
  const served = [];
  TENANTS.forEach((tenant, number) => line.add(number, tenant.backlog, number));

  const rows = TENANTS.map((tenant, number) => {
    const weight = element("input", { type: "range", min: 1, max: 5, value: tenant.weight, "aria-label": `weight of ${tenant.name}` });
    const more = element("button", { type: "button" }, "+ 10");
    more.addEventListener("click", () => { line.add(number, 10); show(); });
    const row = { weight, says: element("output"), backlog: element("div", { class: "turns-boxes" }) };
    weight.addEventListener("input", show);
    row.box = element("div", { class: "turns-row" },
      element("strong", { class: `turns-name turns-${number}` }, tenant.name), element("label", {}, "weight ", weight), row.says, more, row.backlog);
    return row;
  });
  const order = element("select", { "aria-label": "order of delivery" },
    element("option", { value: "turns" }, "by turns (fila-cluster)"), element("option", { value: "arrival" }, "by arrival (FIFO)"));
  const pause = element("button", { type: "button" });
  const track = element("div", { class: "turns-boxes", "data-testid": "served" });
  const figure = element("figure", { class: "turns" }, ...rows.map((row) => row.box),
    element("div", { class: "turns-row" }, element("strong", { class: "turns-name" }, "served"), order, pause, track),
    element("figcaption", {}, "The latest delivery is on the left. Change weights and backlogs while it runs."));

  function show() {
    rows.forEach((row, number) => {
      const count = line.pending[number];
      const share = served.length ? Math.round((100 * served.filter((each) => each === number).length) / served.length) : 0;
      row.says.textContent = `${row.weight.value} · ${count} wait · ${share} % of the last ${served.length}`;
      row.backlog.replaceChildren(...Array.from({ length: Math.min(count, BACKLOG_SHOWN) }, () => element("i", { class: `turns-${number}` })));
    });
    track.replaceChildren(...served.map((number) => element("i", { class: `turns-${number}` })));
  }

  function step() {
    const tenant = line.next(order.value === "turns", rows.map((row) => Number(row.weight.value)));
    if (tenant === null) return;
    served.unshift(tenant);
    served.length = Math.min(served.length, SERVED_SHOWN);
    show();
  }

  let timer = null;
  function toggle() {
    timer = timer === null ? setInterval(step, PAUSE_MS) : (clearInterval(timer), null);
    pause.textContent = timer === null ? "play" : "pause";
  }
  pause.addEventListener("click", toggle);
  show();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) pause.textContent = "play";
  else toggle();
  picture.after(figure);
}

const picture = document.querySelector('#fairness img[src$="turns.svg"]'); // other pages only show it
if (picture) play(picture.closest("a") ?? picture);
