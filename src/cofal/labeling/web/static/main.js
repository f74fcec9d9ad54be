// The page as a whole: which view shows, keys, theme, help.

import { post, session } from "./api.js";
import { disagreementsView } from "./disagreements.js";
import { $, make, show } from "./dom.js";
import { labelView } from "./label.js";
import { reviewView } from "./review.js";

const facts = await session();
$("#site").textContent = facts.site;
$("#annotator").textContent = facts.annotator;
show($("#who"), true);
show($("#logout"), facts.by_token);
$("#logout").addEventListener("click", async () => { await post("/api/logout", {}); location.assign("/login"); });

const views = { label: labelView(facts), review: reviewView(facts), disagreements: disagreementsView(facts) };
let shown = "";

async function route() {
  const [name, key] = location.hash.slice(1).split("/");
  const before = shown;
  const wanted = name === "image" && key ? "label" : name in views ? name : "label";
  shown = wanted;
  for (const view of Object.keys(views)) show($(`#view-${view}`), view === wanted);
  document.body.dataset.view = wanted;
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.hash === `#${name === "image" ? "review" : wanted}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (wanted === "label") await views.label.enter(name === "image" ? key : "", "review");
  else await views[wanted].enter();
  if (before && before !== wanted) $("#main").focus({ preventScroll: true });
}
addEventListener("hashchange", route);

// --- keys
const single = $("#shortcuts");
single.checked = localStorage.getItem("cofal-keys") !== "off";
single.addEventListener("change", () => localStorage.setItem("cofal-keys", single.checked ? "on" : "off"));
const help = $("#help");
const openHelp = () => help.showModal();
$("#help-open").addEventListener("click", openHelp);
$("#keys").replaceChildren(...views.label.keys.flatMap(([keys, text]) => [make("dt", {}, keys), make("dd", {}, text)]));
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (shown === "label" && views.label.key(event, single.checked)) { event.preventDefault(); return; }
  if (event.key === "?" && !event.target.closest("input, select")) { event.preventDefault(); openHelp(); }
});

// --- light and dark
const THEMES = { "": ["◐", "Light or dark: as the system"], light: ["☀", "Light or dark: light"], dark: ["☾", "Light or dark: dark"] };
const theme = $("#theme");
function drawTheme() {
  const [sign, text] = THEMES[document.documentElement.dataset.theme ?? ""];
  theme.textContent = sign;
  theme.setAttribute("aria-label", text);
  theme.title = text;
}
theme.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("cofal-theme", next);
  drawTheme();
});
drawTheme();

await route();
