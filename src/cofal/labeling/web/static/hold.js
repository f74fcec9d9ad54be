// Holding an image: the server keeps it for whoever has it open, for ten minutes. While a person is at work the hold is
// renewed; without a sign of life the image is covered before another annotator can get it.

const RENEW = 4 * 60_000; // ms
const GIVE_UP = 8 * 60_000; // ms without a key, a touch or a move of the mouse
const LOOK = 15_000; // ms between looks

/** `cover()` takes the image off the screen. Returns `begin(renew)`, where `renew()` asks the server to hold on, and `end()`. */
export function holding(cover) {
  let renewed = 0, alive = 0, held = false, renew = null;
  for (const sign of ["keydown", "pointerdown", "pointermove"]) addEventListener(sign, () => { alive = Date.now(); }, true);

  function look() {
    if (!held) return;
    const now = Date.now(); // also counts the hours a machine slept
    if (now - Math.max(alive, renewed) > GIVE_UP) { held = false; cover(); }
    else if (now - renewed > RENEW && alive > renewed) { renewed = now; renew(); }
  }
  setInterval(look, LOOK);
  document.addEventListener("visibilitychange", look);

  return { begin(how) { renew = how; renewed = Date.now(); held = true; }, end() { held = false; } };
}
