// Talking to the server of this page. While it cannot be reached, a request waits and is sent again by itself.

import { $, announce, show } from "./dom.js";

let csrf = "";
const PAUSE = 700; // ms between tries

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** What the server refused, in its own words. */
export class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function send(path, options) {
  for (let lost = false; ; lost = true) {
    let response;
    try {
      response = await fetch(path, { cache: "no-store", credentials: "same-origin", redirect: "error", ...options });
    } catch {
      if (!lost) announce("Connection lost. Waiting for the server of this page.");
      show($("#lost"), true);
      await pause(PAUSE);
      continue;
    }
    if (lost) { show($("#lost"), false); announce("Connected again."); }
    if (response.status === 401) { location.assign("/login"); await new Promise(() => {}); }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Refused(response.status, answer.detail ?? `the server answered ${response.status}`);
    return answer;
  }
}

export const get = (path) => send(path, {});

export const post = (path, body) =>
  send(path, { method: "POST", headers: { "Content-Type": "application/json", "X-CSRF": csrf }, body: JSON.stringify(body) });

/** The facts that hold for the whole visit: site, annotator, classes. */
export async function session() {
  const found = await get("/api/session");
  csrf = found.csrf;
  return found;
}
