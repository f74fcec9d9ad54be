// The login form: name and token for annotators who have one.

import { $, show } from "./dom.js";

const form = $("#login");
const { by_token: byToken } = await (await fetch("/api/door")).json();
show(form, byToken);
show($("#by-link"), !byToken);
if (byToken) form.elements.name.focus();

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const told = $("#refused");
  told.textContent = "";
  const body = JSON.stringify({ name: form.elements.name.value.trim().normalize("NFC"), token: form.elements.token.value.trim() });
  try {
    const response = await fetch("/api/login", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    if (response.ok) return location.replace("/");
    told.textContent = (await response.json()).detail;
  } catch {
    told.textContent = "The server of this page does not answer; try again when it runs.";
  }
  form.elements.token.select();
});
