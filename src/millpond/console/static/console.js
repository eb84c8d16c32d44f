// Keys: "/" finds, "g" and a letter goes to a page. All pages work without this file.
"use strict";
(() => {
  let going = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    if (event.key === "/") {
      document.getElementById("find")?.focus();
      event.preventDefault();
    } else if (going) {
      document.querySelector(`header nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    }
    going = event.key === "g";
  });
})();
