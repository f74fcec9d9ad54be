// Building and finding elements. Text only ever becomes text nodes, so no name can become markup.

export const $ = (selector, root = document) => root.querySelector(selector);

/** An element: `make("button", {class: "x", onclick: f, "aria-label": "…"}, "text", child, …)`. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A name that people gave (a class, a file, a colleague): kept apart from the text around it in both directions. */
export const given = (text, tag = "bdi", attributes = {}) => make(tag, { dir: "auto", ...attributes }, text);

/** Tell it to people who hear the page. */
export function announce(text) {
  const region = $("#announcer");
  region.textContent = region.textContent === text ? `${text}\u00a0` : text;
}

export const show = (element, on) => { element.hidden = !on; };

let fading = 0;

/** A short word at the foot of the page, which goes away by itself; `content` is a text or an element. */
export function toast(content) {
  const element = $("#toast");
  element.replaceChildren(content);
  show(element, true);
  announce(element.textContent);
  clearTimeout(fading);
  fading = setTimeout(() => show(element, false), 4000);
}

export const count = (number) => number.toLocaleString("en");

/** A duration in words: "under a minute", "about 4 min", "about 2 h 10 min". */
export function duration(seconds) {
  if (seconds < 45) return "under a minute";
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `about ${minutes} min`;
  const rest = Math.round((minutes % 60) / 10) * 10;
  const hours = Math.floor(minutes / 60) + (rest === 60 ? 1 : 0);
  return rest % 60 ? `about ${hours} h ${rest} min` : `about ${hours} h`;
}
