// What is wider than its place is scrolled by the keyboard, too: it has to be reached by Tab. The rest is passed over.
"use strict";

const SCROLLED = document.querySelectorAll(".highlight pre, .table-wrapper");

const watcher = new ResizeObserver((changes) => {
  for (const { target } of changes) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
SCROLLED.forEach((target) => watcher.observe(target));
