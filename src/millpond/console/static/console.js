// Keys: "/" finds, "g" and a letter goes to a page. A slider sets the time beside it. A file that is dropped anywhere is sent. What goes on is shown anew, unless somebody reads or writes in it. A page that is open says when its node is gone.
// All pages work without this file.
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
  for (const slider of document.querySelectorAll("input[type=range][data-sets]")) {
    const text = slider.form.elements[slider.dataset.sets];
    slider.hidden = false;
    slider.value = Date.parse(text.value) || slider.max;
    slider.addEventListener("input", () => { text.value = new Date(Number(slider.value)).toISOString(); });
    slider.addEventListener("change", () => slider.form.requestSubmit());
  }
  const file = document.querySelector("input[type=file]");
  for (const name of file ? ["dragover", "drop"] : []) {
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();  // or the browser leaves the page for the file
      if (name === "dragover" || event.dataTransfer.files.length !== 1) return;
      file.files = event.dataTransfer.files;
      file.form.requestSubmit();
    });
  }
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target.matches("[hx-trigger^=every]") && event.target.querySelector("details[open], :focus")) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (new URL(event.detail.xhr.responseURL).pathname === location.pathname) return;
    event.detail.shouldSwap = false;  // it is the page of sign-in
    location.reload();
  });
  const says = (lost) => () => { document.getElementById("lost").hidden = !lost; };
  for (const name of ["sendError", "sseError"]) document.addEventListener(`htmx:${name}`, says(true));
  for (const name of ["afterOnLoad", "sseOpen"]) document.addEventListener(`htmx:${name}`, says(false));
})();
