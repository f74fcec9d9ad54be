// What a report does when touched: a tip at the nearest point, one selector or client brought out, another track on the map.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- tips: every chart offers its points as {x, y, text}; the nearest one within reach is shown
  const data = document.getElementById("map-data");
  const places = data ? JSON.parse(data.textContent) : null;
  const shown = (element) => !element.closest(".off, .dim");

  function offers(svg) {
    if (!svg.classList.contains("map")) {
      return all("[data-tip]", svg).filter(shown)
        .map((dot) => ({ x: +dot.getAttribute("cx"), y: +dot.getAttribute("cy"), text: dot.dataset.tip, bias: 1 }));
    }
    const picks = all("[data-tip]", svg).filter(shown)
      .map((pick) => ({ x: +pick.dataset.x, y: +pick.dataset.y, text: pick.dataset.tip, bias: 0.4 }));
    const dimmed = new Set(all(".dots.dim").map((layer) => +layer.dataset.client));
    places.points.forEach((points, client) => {
      if (!dimmed.has(client)) {
        for (const [x, y, id] of points) picks.push({ x, y, client, id, bias: 1 });
      }
    });
    return picks;
  }

  function nearest(svg, event) {
    const box = svg.getBoundingClientRect();
    const view = svg.viewBox.baseVal;
    const scale = view.width / box.width;
    const x = view.x + (event.clientX - box.left) * scale;
    const y = view.y + (event.clientY - box.top) * scale;
    let best = null;
    let least = 26 * scale;
    for (const offer of offers(svg)) {
      const distance = Math.hypot(offer.x - x, offer.y - y) * offer.bias;
      if (distance < least) [best, least] = [offer, distance];
    }
    return best;
  }

  function show(svg, event) {
    const found = nearest(svg, event);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = found.text ?? [found.id, places.clients[found.client], places.note].join("\n").trim();
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 16;
    const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 12 : below;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${top}px`;
  }

  for (const svg of all("svg")) {
    svg.addEventListener("pointermove", (event) => show(svg, event));
    svg.addEventListener("pointerdown", (event) => show(svg, event));
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // --- bring one selector (of a chart) or one client (of the map) out; the same button again ends it
  for (const group of all(".switch.focus")) {
    const target = document.getElementById(group.dataset.target);
    const key = group.dataset.target === "map-panels" ? "client" : "method";
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const each of all("button", group)) each.setAttribute("aria-pressed", String(on && each === button));
      const marks = key === "client" ? all(".dots, .pick", target) : all(".line", target);
      for (const mark of marks) mark.classList.toggle("dim", on && mark.dataset[key] !== button.dataset.focus);
    });
  }

  // --- which track, and how many of its picks
  const budget = document.getElementById("budget");

  function choose(method) {
    for (const button of all("[data-choose]")) button.setAttribute("aria-pressed", String(button.dataset.choose === method));
    for (const track of all(".track")) track.classList.toggle("off", track.dataset.method !== method);
    for (const panel of all(".panel")) {
      const track = all(".track", panel).find((each) => each.dataset.method === method);
      panel.hidden = !track;
      if (track) panel.querySelector(".what").textContent = track.dataset.name;
    }
    for (const block of all(".gallery")) block.hidden = block.dataset.method !== method;
  }

  function limit() {
    for (const count of all(".panel .count")) count.textContent = budget.value;
    for (const pick of all(".pick")) {
      pick.classList.toggle("off", +pick.dataset.rank > +budget.value);
      pick.classList.toggle("again", pick.dataset.again.split(" ").includes(budget.value));
    }
  }

  for (const button of all("[data-choose]")) button.addEventListener("click", () => choose(button.dataset.choose));
  if (budget) budget.addEventListener("change", limit);
})();
