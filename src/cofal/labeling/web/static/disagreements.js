// Images that two annotators answered differently, the agreement in a number, and the word that settles each.

import { get, post } from "./api.js";
import { $, announce, count, given, make } from "./dom.js";
import { address } from "./picture.js";
import { fetchProgress } from "./progress.js";

export function disagreementsView({ classes }) {
  async function settle(key, answer) {
    draw(await post("/api/resolve", { key, ...answer }));
    announce(`Settled: ${answer.label ?? `skipped, ${answer.reason}`}.`);
    ($("#disputes button") ?? $("#main")).focus();
  }

  function card({ key, sample, opinions }, at) {
    const other = make("select", { "aria-label": `Another class for ${sample}`, onchange: (event) => event.target.value && settle(key, { label: event.target.value }) },
      make("option", { value: "" }, "another class…"), ...classes.map((name) => make("option", { value: name, dir: "auto" }, name)));
    const labels = new Set(opinions.map(({ label }) => label).filter((label) => label !== null));
    const reasons = new Set(opinions.map(({ reason }) => reason).filter((reason) => reason !== null));
    return make("li", { "aria-labelledby": `dispute-${at}` },
      make("img", { src: address(key), alt: `Image in dispute: ${sample}`, width: "160", height: "160" }),
      make("div", {},
        given(sample, "h2", { id: `dispute-${at}`, class: "sample" }),
        make("dl", { class: "opinions" }, ...opinions.flatMap(({ annotator, label, reason }) => [given(annotator, "dt"), given(label ?? `skipped: ${reason}`, "dd")])),
        make("div", { class: "row" },
          ...[...labels].map((label) => make("button", { type: "button", onclick: () => settle(key, { label }) }, "It is ", given(label, "b"))),
          ...[...reasons].map((reason) => make("button", { type: "button", onclick: () => settle(key, { reason }) }, `Skip it: ${reason}`)), other)));
  }

  function kappa({ kappa: value, images, pairs }) {
    if (!images) return [make("p", { class: "note" }, "No image has been answered by two people yet. Start the page with ", make("code", {}, "--overlap 0.1"), " to have every tenth asked twice.")];
    const known = value !== null;
    return [
      make("p", { class: "kappa" }, make("strong", {}, known ? value.toFixed(2) : "–"), make("span", {}, "Cohen's kappa")),
      make("p", { class: "note" }, known ? "1 is full agreement, 0 what chance alone would give." : "Kappa needs answers of more than one class."),
      make("ul", { class: "pairs" }, ...pairs.map((pair) => make("li", {}, given(pair.first), " and ", given(pair.second),
        `: the same class for ${count(pair.agreed)} of ${count(pair.images)}`, pairs.length > 1 && pair.kappa !== null ? `, kappa ${pair.kappa.toFixed(2)}` : ""))),
    ];
  }

  function draw(found) {
    fetchProgress();
    $("#agreement").replaceChildren(...kappa(found.agreement));
    $("#disputes").replaceChildren(...found.items.map(card));
    if (!found.items.length && found.agreement.images) $("#agreement").append(make("p", {}, "No disagreement is open."));
  }

  return { enter: async () => draw(await get("/api/disagreements")) };
}
