// The grid: every question with its answer, filtered and paged by the server; a press opens the image to correct it.

import { get } from "./api.js";
import { $, count, given, make, show } from "./dom.js";
import { address } from "./picture.js";
import { fetchProgress } from "./progress.js";

export function reviewView({ classes }) {
  const fields = { state: $("#filter-state"), label: $("#filter-class"), annotator: $("#filter-annotator") };
  fields.label.append(...classes.map((name) => make("option", { value: name, dir: "auto" }, name)));
  let page = 0, asked = 0;
  for (const field of Object.values(fields)) field.addEventListener("change", () => { page = 0; draw(); });
  $("#page-back").addEventListener("click", () => turn(-1));
  $("#page-next").addEventListener("click", () => turn(1));

  async function turn(by) {
    page += by;
    await draw();
    $("#review-heading").scrollIntoView();
    $("#cards button")?.focus({ preventScroll: true });
  }

  function card({ key, sample, state, label, reason, by }) {
    const answer = { skipped: `skipped: ${reason}`, open: "not answered", disputed: "in dispute", wanted: "your opinion is wanted" }[state] ?? label;
    const open = () => { location.hash = `image/${key}`; };
    // Without an answer there is nothing to correct, and someone may have it in front of him: it comes up under Label.
    const [tag, press] = state === "open" ? ["div", {}] : ["button", { type: "button", onclick: open }];
    return make("li", {},
      make(tag, { class: `card ${state}`, ...press },
        make("img", { src: address(key), alt: "", loading: "lazy", width: "120", height: "120" }),
        given(answer, "span", { class: "name" }),
        given(sample, "span", { class: "sample" }),
        by.length ? given(by.join(", "), "span", { class: "by" }) : null));
  }

  async function draw() {
    const wanted = ++asked;
    const filters = Object.entries(fields).map(([name, field]) => [name, field.value]);
    const [found, { annotators }] = await Promise.all([
      get(`/api/review?${new URLSearchParams([...filters, ["page", page]])}`), fetchProgress(),
    ]);
    if (wanted !== asked) return; // a later filter has been set meanwhile
    page = found.page;
    const chosen = fields.annotator.value;
    fields.annotator.replaceChildren(make("option", { value: "" }, "anyone"), ...annotators.map((name) => make("option", { value: name, dir: "auto" }, name)));
    fields.annotator.value = chosen;
    $("#cards").replaceChildren(...found.items.map(card));
    $("#review-count").textContent = found.total === 1 ? "1 image" : `${count(found.total)} images`;
    show($("#pages"), found.pages > 1);
    $("#page-number").textContent = `${count(page + 1)} of ${count(found.pages)}`;
    $("#page-back").disabled = page === 0;
    $("#page-next").disabled = page + 1 >= found.pages;
  }

  return { enter: draw };
}
