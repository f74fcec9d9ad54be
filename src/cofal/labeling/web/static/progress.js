// The line under the header: how far the site is, and how long the rest takes.

import { get } from "./api.js";
import { $, count, duration, show } from "./dom.js";

let asked = 0;

/** Fetch and draw it; of several on their way, the last one asked for is drawn. */
export async function fetchProgress() {
  const mine = ++asked;
  const progress = await get("/api/progress");
  if (mine === asked) draw(progress);
  return progress;
}

function draw({ asked: all, labelled, skipped, disputed, left, seconds_left: time }) {
  const bar = $("#bar");
  bar.max = Math.max(1, all);
  bar.value = all - left;
  const parts = [`${count(labelled)} of ${count(all)} labelled`];
  if (skipped) parts.push(`${count(skipped)} skipped`);
  if (left && time !== null) parts.push(`${duration(time)} left`);
  $("#progress-text").textContent = parts.join(" · ");
  show($("#disputed"), disputed > 0);
  $("#disputed").textContent = count(disputed);
  document.title = left ? `${count(left)} to label · cofal` : "All labelled · cofal";
}
