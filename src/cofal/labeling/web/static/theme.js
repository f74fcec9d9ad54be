// Light, dark or as the system says; loaded before the first paint so that the page never flashes in the wrong one.
"use strict";
{
  const kept = localStorage.getItem("cofal-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}
