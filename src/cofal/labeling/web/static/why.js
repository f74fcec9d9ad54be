// The side panel: why this image was asked, and what like it has been labelled at this site.

import { get } from "./api.js";
import { $, given, make } from "./dom.js";
import { address } from "./picture.js";

let wanted = "";

/** Fetched after the image is on the screen: nobody waits for it. */
export async function drawAround(key) {
  wanted = key;
  $("#around").setAttribute("aria-busy", "true");
  const { why, neighbours } = await get(`/api/around/${key}`);
  if (wanted !== key) return; // another image has come meanwhile
  $("#around").setAttribute("aria-busy", "false");
  $("#why-text").replaceChildren(...why.map((sentence) => make("p", {}, sentence)));
  if (!neighbours.length) {
    $("#neighbours").replaceChildren(make("p", { class: "note" }, "Nothing like it has been labelled here yet."));
    return;
  }
  const cards = neighbours.map(({ key: near, label }) =>
    make("li", {}, make("img", { src: address(near), alt: "", width: "72", height: "72" }), given(label, "span", { class: "name" })));
  $("#neighbours").replaceChildren(make("h3", {}, "Nearest labelled at this site"), make("ul", { class: "near" }, ...cards));
}
