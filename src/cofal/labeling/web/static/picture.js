// Images: fetched and decoded ahead, and small ones enlarged in whole steps so that their pixels stay crisp.

import { make } from "./dom.js";

const KEPT = 40;
const SMALL = 160; // pixels: below this, each pixel is shown as a square
const LARGEST = 56; // times: a digit of 8 x 8 pixels larger than that is only squares
const ready = new Map(); // key -> promise of a decoded <img>

/** Where the small picture is, as the grid and the neighbours show it. */
export const address = (key) => `/image/${key}.png`;

/** The decoded <img> of a picture in full size; asked for twice, it is fetched once. */
export function load(key) {
  if (!ready.has(key)) {
    const image = make("img", { src: `/full/${key}.png`, decoding: "async", draggable: "false" });
    ready.set(key, image.decode().then(() => image, (error) => { ready.delete(key); throw error; }));
    if (ready.size > KEPT) ready.delete(ready.keys().next().value);
  }
  return ready.get(key);
}

/** Fetch ahead; a failure shows when the picture is really wanted. */
export const preload = (key) => { load(key).catch(() => {}); };

/** Size `image` to its frame. */
export function fit(image, frame) {
  const { naturalWidth: width, naturalHeight: height } = image;
  if (!width || !frame.clientWidth) return;
  const { paddingLeft, paddingTop } = getComputedStyle(frame);
  const across = frame.clientWidth - 2 * parseFloat(paddingLeft), down = frame.clientHeight - 2 * parseFloat(paddingTop);
  const small = Math.min(width, height) < SMALL;
  const room = Math.min(across / width, down / height);
  const scale = small && room >= 2 ? Math.min(Math.floor(room), LARGEST) : Math.min(room, 3);
  image.classList.toggle("crisp", small);
  image.width = Math.max(1, Math.round(width * scale));
  image.height = Math.max(1, Math.round(height * scale));
}
