// Keeps a page as it is now, shows times as people say them, and gives pages keys. All of it works without.
"use strict";
const main = document.querySelector("main"), lamp = document.querySelector(".live");
const say = (text, on) => { if (lamp) { lamp.textContent = text; lamp.classList.toggle("on", on); } };

// Times, relative to now; the absolute one is the title.
const unit = s => s < 120 ? Math.round(s) + " s" : s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
function times() {
  for (const t of document.querySelectorAll("time[datetime]")) {
    const s = (Date.now() - Date.parse(t.dateTime)) / 1000, text = s < 0 ? "in " + unit(-s) : unit(s) + " ago";
    if (!t.title) t.title = t.textContent;
    if (t.textContent !== text) t.textContent = text;
  }
}
times();
setInterval(times, 1000);

// What changes, while the page is seen and nobody writes in it.
let events = null;
function listen() {
  const from = document.body.dataset.live;
  if (!from) return;
  if (document.hidden) { if (events) events.close(); events = null; return say("paused", false); }
  if (events) return;
  events = new EventSource(from);
  events.onopen = () => say("live", true);
  events.onerror = () => say("not live: trying again", false);
  events.onmessage = e => {
    if (main.contains(document.activeElement) && /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) return;
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    main.innerHTML = e.data;
    if (focused) { const again = main.querySelector(`[href="${CSS.escape(focused)}"]`); if (again) again.focus({ preventScroll: true }); }
    times();
  };
}
listen();
document.addEventListener("visibilitychange", listen);

// Keys: / searches, j and k go down and up the rows, ? says so.
const rows = () => [...main.querySelectorAll("tbody tr a:first-of-type, .card .name")].filter((a, i, all) => !all.slice(0, i).some(b => b.closest("tr, .card") === a.closest("tr, .card")));
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || /INPUT|SELECT|TEXTAREA/.test(e.target.tagName)) return;
  if (e.key === "/") { document.querySelector("header input").focus(); e.preventDefault(); }
  if (e.key === "j" || e.key === "k") {
    const all = rows(), at = all.indexOf(document.activeElement), next = all[e.key === "j" ? at + 1 : Math.max(0, at - 1)];
    if (next) next.focus();
  }
  if (e.key === "?") { const help = document.querySelector(".keys"); help.hidden = !help.hidden; }
  if (e.key === "Escape") document.querySelector(".keys").hidden = true;
});
