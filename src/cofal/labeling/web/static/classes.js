// Choosing a class: a button with a key for each of up to ten, a list that is filtered by typing for more.

import { given, make } from "./dom.js";

const KEYS = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "0"];
export const FEW = KEYS.length;

/**
 * A chooser in `place`. `choose(name)` is called with the class; `mark(name)` shows the answer given before;
 * `key(event)` takes a key press and says whether it was one of its own; `lock(on)` while an answer is on its way.
 */
export function chooser(place, classes, choose) {
  return classes.length <= FEW ? buttons(place, classes, choose) : filtered(place, classes, choose);
}

// Classes named 0…9 get their own digit; any other list is numbered from 1.
function keysFor(classes) {
  return classes.every((name) => KEYS.includes(name)) ? classes : KEYS.slice(0, classes.length);
}

function buttons(place, classes, choose) {
  const keys = keysFor(classes);
  const all = classes.map((name, at) =>
    make("button", { type: "button", class: "class", "aria-keyshortcuts": keys[at], "aria-pressed": "false", onclick: () => choose(name) },
      keys[at] === name ? null : make("kbd", { "aria-hidden": "true" }, keys[at]), given(name, "span", { class: "name" })));
  const longest = Math.max(...classes.map((name) => name.length));
  const group = make("div", { class: `classes ${longest <= 2 ? "tiny" : longest <= 8 ? "short" : ""}`, role: "group", "aria-labelledby": "question" }, ...all);
  place.replaceChildren(group);
  return {
    mark: (name) => all.forEach((button, at) => button.setAttribute("aria-pressed", String(classes[at] === name))),
    lock: (on) => all.forEach((button) => button.setAttribute("aria-disabled", String(on))),
    key(event) {
      const at = event.ctrlKey || event.metaKey || event.altKey ? -1 : keys.indexOf(event.key);
      if (at >= 0) choose(classes[at]);
      return at >= 0;
    },
  };
}

function filtered(place, classes, choose) {
  const list = make("ul", { id: "class-list", role: "listbox", class: "class-list", "aria-label": "Classes", tabindex: "-1" });
  const field = make("input", {
    id: "class-filter", type: "text", role: "combobox", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    placeholder: `Type to find one of ${classes.length} classes`, "aria-label": "Find a class",
    "aria-controls": "class-list", "aria-expanded": "true", "aria-autocomplete": "list",
  });
  const hint = make("p", { class: "hint", id: "class-hint" });
  field.setAttribute("aria-describedby", "class-hint");
  place.replaceChildren(make("div", { class: "finder" }, field, list, hint));
  const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const folded = classes.map(fold);
  let shown = [], active = 0, marked = null;

  function point(to) {
    active = Math.max(0, Math.min(to, shown.length - 1));
    [...list.children].forEach((option, at) => option.classList.toggle("active", at === active));
    const option = list.children[active];
    if (option) { field.setAttribute("aria-activedescendant", option.id); option.scrollIntoView({ block: "nearest" }); }
    else field.removeAttribute("aria-activedescendant");
  }

  function draw() {
    const wanted = fold(field.value.trim());
    const rank = (at) => (folded[at] === wanted ? 0 : folded[at].startsWith(wanted) ? 1 : 2);
    shown = classes.map((_, at) => at).filter((at) => folded[at].includes(wanted));
    if (wanted) shown.sort((a, b) => rank(a) - rank(b) || a - b);
    list.replaceChildren(...shown.map((at) => make("li", {
      role: "option", id: `class-${at}`, "aria-selected": String(classes[at] === marked), onclick: () => take(at),
    }, given(classes[at], "span", { class: "name" }))));
    hint.textContent = shown.length ? "Enter takes the marked class, arrow keys move." : "No class of that name. Delete skips the image.";
    point(wanted ? 0 : Math.max(0, shown.findIndex((at) => classes[at] === marked)));
  }

  function take(at) {
    field.value = "";
    choose(classes[at]);
    draw();
  }

  field.addEventListener("input", draw);
  draw();
  return {
    mark: (name) => { if (marked !== name || field.value) { marked = name; field.value = ""; draw(); } },
    lock: (on) => field.setAttribute("aria-busy", String(on)),
    key(event) {
      const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        point(active + (event.key === "ArrowDown" ? 1 : -1));
        field.focus();
        return true;
      }
      if (event.key === "Enter" && (event.target === field || event.target === document.body)) {
        if (shown.length) take(shown[active]);
        return true;
      }
      if (event.key === "Escape" && field.value) { field.value = ""; draw(); return true; }
      if (event.target === field) {
        // Arrows and Delete belong to the text while there is some.
        return plain && (event.key.length === 1 || field.value !== "") ? "typed" : false;
      }
      if (plain && event.key.length === 1 && event.key !== " ") { field.focus(); return "typed"; }
      return false;
    },
  };
}
