// Keeps a page fresh: when the server says that something changed, its live part is asked for
// again and put in place. Without this script every page works; it is just not refreshed.
"use strict";
(() => {
  const live = document.getElementById("live");
  const link = document.getElementById("link");
  const address = live && live.dataset.stream;
  if (!address || !window.EventSource) return;

  let asked = false;
  let again = false;

  // Somebody who types, selects or has opened a choice must not lose it.
  const busy = () => {
    const active = document.activeElement;
    const typing = active && live.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName);
    return typing || String(window.getSelection()).length > 0;
  };

  // What has the focus keeps it when its place is filled anew: a key pressed next must reach it.
  const nameOf = (element) => JSON.stringify([
    element.tagName,
    element.getAttribute("href"),
    element.form && element.form.getAttribute("action"),
    element.textContent.trim(),
  ]);
  const focusable = () => [...live.querySelectorAll("a[href], button, summary")];

  async function refresh() {
    if (asked) { again = true; return; }
    if (busy() || document.hidden) { window.setTimeout(refresh, 2000); return; }
    asked = true;
    try {
      const answer = await fetch(location.href, { headers: { "x-fragment": "live" } });
      if (answer.redirected) { location.reload(); return; }
      if (answer.ok && !busy()) {
        const active = document.activeElement;
        const focused = active && live.contains(active) ? nameOf(active) : "";
        const places = [...live.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
        live.innerHTML = await answer.text();
        live.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = places[i] || 0; });
        if (focused) {
          const found = focusable().find((element) => nameOf(element) === focused);
          if (found) found.focus({ preventScroll: true });
        }
      }
    } catch { /* the stream tells when the server is back */ }
    asked = false;
    if (again) { again = false; window.setTimeout(refresh, 500); }
  }

  const stream = new EventSource(address);
  stream.addEventListener("changed", refresh);
  stream.addEventListener("open", () => { link.textContent = "live"; refresh(); });
  stream.addEventListener("error", () => { link.textContent = "connection lost"; });
})();
