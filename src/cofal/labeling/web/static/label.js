// The labelling view: one image, an answer, the next image.

import { get, post, Refused } from "./api.js";
import { chooser, FEW } from "./classes.js";
import { $, announce, count, given, make, show, toast } from "./dom.js";
import { holding } from "./hold.js";
import { fit, load, preload } from "./picture.js";
import { fetchProgress } from "./progress.js";
import { drawAround } from "./why.js";

const REASONS = [["broken", "Broken image"], ["unclear", "Unclear, cannot tell"], ["not in the list", "Its class is not in the list"]];
const POLL = 4000; // ms between looks for new questions while there is nothing to do

export function labelView({ classes, annotator }) {
  const choose = chooser($("#chooser"), classes, answer);
  const frame = $("#frame");
  let current = null; // the item on the screen
  let trail = []; // keys answered or seen before it, oldest first
  let place = 0; // position in the trail; trail.length is the open question
  let undoable = null;
  let busy = false, running = Promise.resolve(); // one action at a time
  let returnTo = ""; // where an image opened from the grid leads back to
  let since = 0, away = 0, left = 0; // ms: shown at, hidden for, hidden at
  let waiting = 0;

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) left = performance.now();
    else if (left) { away += performance.now() - left; left = 0; }
  });
  new ResizeObserver(() => { if (frame.firstElementChild) fit(frame.firstElementChild, frame); }).observe(frame);

  const hold = holding(() => alone(() => rest("paused")));

  function lock(on) {
    busy = on;
    choose.lock(on);
    $("#work").setAttribute("aria-busy", String(on));
  }

  /** Do one thing at a time: what a person presses meanwhile is left out, so that no answer hits the wrong image. */
  function alone(action) {
    if (busy) return running;
    lock(true);
    running = action().catch(async (error) => {
      if (!(error instanceof Refused)) throw error;
      returnTo = "";
      await fetchNext().catch(() => {});
      toast(error.message);
    }).finally(() => lock(false));
    return running;
  }

  async function display(item) {
    let image;
    try {
      image = await load(item.key);
    } catch {
      image = make("p", { class: "unreadable" }, "This image cannot be shown. Skip it as broken.");
    }
    current = item;
    image.alt = `Image to label: ${item.sample}`;
    frame.replaceChildren(image);
    show($("#work"), true);
    show($("#rest"), false);
    if (image.naturalWidth) fit(image, frame);
    $("#position").textContent = `Question ${count(item.rank)}`;
    $("#sample").textContent = item.sample;
    const mine = item.opinions.find((opinion) => opinion.annotator === annotator);
    choose.mark(item.settled_by ? item.label : mine?.label ?? null);
    drawGiven(item, mine);
    drawAround(item.key).catch(() => {}); // the answer does not depend on it
    $("#back").disabled = place === 0;
    $("#undo").disabled = !undoable;
    $("#undo").title = undoable ? `Take back: ${undoable.text}` : "";
    $("#next").disabled = !returnTo && place >= trail.length && !item.others;
    $("#next").replaceChildren(returnTo ? "Grid " : "Next ", make("span", { "aria-hidden": "true" }, "→"));
    since = performance.now();
    away = 0;
    left = document.hidden ? since : 0;
  }

  /** What has been answered before, by whom. */
  function drawGiven({ opinions, settled_by: settledBy, label, reason }, mine) {
    const said = (answer) => given(answer.label ?? `skipped, ${answer.reason}`, "b");
    const parts = opinions.flatMap((opinion) => [opinion === mine ? "You: " : given(`${opinion.annotator}: `), said(opinion), ". "]);
    if (settledBy) parts.push("Settled by ", given(settledBy), ": ", said({ label, reason }), ". ");
    show($("#given"), parts.length > 0);
    $("#given").replaceChildren(...parts, mine || settledBy ? "Choose a class to correct it." : "Choosing a class adds your answer.");
  }

  /** Nothing to label: says why, and looks again by itself (but not after a pause). */
  async function rest(state) {
    if (!state) {
      const progress = await fetchProgress();
      state = !progress.asked ? "empty" : !progress.left ? "done" : progress.open ? "others" : "seconds";
    }
    hold.end();
    current = null;
    frame.replaceChildren();
    show($("#work"), false);
    const box = $("#rest");
    const review = make("a", { href: "#review", class: "button" }, "Review the answers");
    const back = make("button", { type: "button", onclick: () => alone(back_) }, "Back to the last image");
    const [heading, text, ...actions] = {
      done: ["All done", "Every image that was asked has an answer. New questions appear here by themselves.", review, trail.length ? back : null],
      seconds: ["All done for you", "The images left wait for the second opinion of another annotator.", review, trail.length ? back : null],
      others: ["Nothing for you right now", "The images left are in front of other annotators. This page looks again by itself.", review],
      paused: ["Paused", "Nobody was here for a while, so the image may have gone to someone else.", make("button", { type: "button", class: "primary", onclick: () => alone(fetchNext) }, "Go on")],
      empty: ["No questions yet", "Nothing has been asked of this site. Questions appear here after the next selection."],
    }[state];
    box.replaceChildren(make("div", { class: `sign ${state}`, "aria-hidden": "true" }), make("h2", {}, heading), make("p", {}, text), make("div", { class: "row" }, ...actions));
    show(box, true);
    announce(`${heading}. ${text}`);
    clearTimeout(waiting);
    if (state === "paused") $("button", box).focus();
    else waiting = setTimeout(look, POLL);
  }

  async function look() {
    if (busy || current || $("#view-label").hidden || document.hidden) { waiting = current ? 0 : setTimeout(look, POLL); return; }
    await alone(fetchNext);
  }

  /** Take over the server's word on what is next. */
  async function take(state) {
    ({ undoable, trail } = state);
    if (state.upcoming) preload(state.upcoming);
    place = trail.length;
    if (!state.item) return rest();
    await display(state.item);
    hold.begin(() => get("/api/next").catch(() => {}));
    fetchProgress().catch(() => {});
  }

  const fetchNext = async () => take(await get("/api/next"));
  const seconds = () => Math.max(0, (performance.now() - since - away) / 1000);

  function answer(name) {
    alone(async () => {
      const item = current;
      if (!item) return;
      const state = await post("/api/label", { key: item.key, label: name, seconds: seconds() });
      await after(state, ["Labelled ", given(name, "b")]);
    });
  }

  async function after(state, said) {
    const note = make("span", {}, ...said, ". ", make("button", { type: "button", class: "link", onclick: undo }, "Undo"));
    if (returnTo) { note.lastChild.remove(); toast(note); leave(); return; }
    await take(state);
    toast(note);
    if (state.item) announce(`${note.firstChild.textContent}${note.childNodes[1].textContent}. Next: question ${state.item.rank}.`);
  }

  function leave() {
    const to = returnTo;
    returnTo = "";
    location.hash = to;
  }

  function skip(reason) {
    $("#skip-dialog").close();
    alone(async () => {
      if (!current) return;
      await after(await post("/api/skip", { key: current.key, reason, seconds: seconds() }), [`Skipped: ${reason}`]);
    });
  }

  function undo() {
    alone(async () => {
      if (!undoable) return;
      const { text } = undoable;
      const state = await post("/api/undo", { action: undoable.action });
      returnTo = "";
      if ($("#view-label").hidden) location.hash = "label";
      await take(state);
      if (trail.includes(state.undone)) await visit(trail.indexOf(state.undone)); // it has the answer of before again
      toast(`Taken back: ${text}.`);
    });
  }

  async function back_() {
    if (place > 0) await visit(place - 1);
  }

  /** Show an image that was answered before; it too is kept from others while it is open. */
  async function open(key) {
    const path = `/api/item/${key}`;
    hold.end();
    await display(await get(path));
    hold.begin(() => get(path).catch(() => {}));
  }

  /** Show an image of the trail. */
  async function visit(at) {
    place = at;
    await open(trail[at]);
    if (at > 0) preload(trail[at - 1]);
  }

  async function next_() {
    if (returnTo) return leave();
    if (place < trail.length - 1) return visit(place + 1);
    if (place < trail.length) return fetchNext();
    if (current?.others) await take(await post("/api/later", { key: current.key }));
  }

  $("#back").addEventListener("click", () => alone(back_));
  $("#next").addEventListener("click", () => alone(next_));
  $("#undo").addEventListener("click", undo);
  const dialog = $("#skip-dialog");
  const openSkip = () => { if (current && !busy) dialog.showModal(); };
  $("#skip").addEventListener("click", openSkip);
  $("#reasons").replaceChildren(...REASONS.map(([reason, text], at) =>
    make("button", { type: "button", "aria-keyshortcuts": String(at + 1), onclick: () => skip(reason) }, make("kbd", { "aria-hidden": "true" }, String(at + 1)), text)));
  dialog.addEventListener("keydown", (event) => {
    const found = REASONS[Number(event.key) - 1];
    if (found && !event.repeat) { event.preventDefault(); skip(found[0]); }
  });

  const few = classes.length <= FEW;
  const letters = { s: openSkip, u: undo };

  return {
    keys: [
      few ? [classes.length > 1 ? "the key on the class" : "1", "answer"] : ["typing", "find a class, Enter takes it"],
      ["← →", "back and next"], [few ? "U or Ctrl Z" : "Ctrl Z", "undo the last answer"], [few ? "S or Delete" : "Delete", "skip, with a reason"], ["?", "this help"],
    ],

    /** A key press while this view shows; says whether it was taken. */
    key(event, single) {
      if (event.repeat || !current) return false;
      if (event.target.closest("select, dialog")) return false;
      const taken = single || !few ? choose.key(event) : false;
      if (taken === "typed") return false;
      if (taken) return true;
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !event.target.value) { undo(); return true; }
      if (event.ctrlKey || event.metaKey || event.altKey) return false;
      if (event.key === "ArrowLeft") { alone(back_); return true; }
      if (event.key === "ArrowRight") { alone(next_); return true; }
      if (event.key === "Delete") { openSkip(); return true; }
      if (single && few && letters[event.key.toLowerCase()]) { letters[event.key.toLowerCase()](); return true; }
      return false;
    },

    /** Show the open question, or the image `key` that was chosen in the grid. */
    async enter(key, from) {
      await running.catch(() => {});
      await alone(async () => {
        returnTo = key ? from : "";
        if (!key) return fetchNext();
        place = 0;
        await open(key);
      });
    },
  };
}
