// Put a captured view back into one frame after its page has loaded again. Argument: the frame's captured view.
// Returns what could not be put back. Files are chosen from outside; storage is set last, by storage.js.
const missing = [];
const label = (w) => w.kind + (w.name ? "[name=" + w.name + "]" : w.id ? "#" + w.id : " " + w.path.join(" >>> "));
const within = (path) => {
  let root = document;
  for (const step of path.slice(0, -1)) { root = root?.querySelector(step)?.shadowRoot; }
  return root ?? null;
};
const fits = (e, w) => e && e.localName + (e.type ? ":" + e.type : "") === w.kind && (e.getAttribute("name") ?? "") === w.name;
const find = (w) => {
  const root = within(w.path);
  let found = null;
  if (root) {
    if (w.id) { const same = root.querySelectorAll("#" + CSS.escape(w.id)); if (same.length === 1 && fits(same[0], w)) found = same[0]; }
    if (!found) { const there = root.querySelector(w.path[w.path.length - 1]); if (fits(there, w)) found = there; }
    if (!found && w.name) { const same = [...root.querySelectorAll("[name=" + CSS.escape(w.name) + "]")].filter((e) => fits(e, w)); if (same.length === 1) found = same[0]; }
  }
  if (!found) missing.push(label(w));
  return found;
};
const tell = (e, ...types) => { for (const type of types) e.dispatchEvent(new Event(type, { bubbles: true })); };
// A framework keeps its own copy of a controlled field: it hears "change", a plain page does not (it may submit on it).
const framed = (e) => Object.keys(e).some((k) => k.startsWith("__react") || k.startsWith("__vue") || k === "_assign" || k.startsWith("__svelte"));
const set = (e, key, value) => Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), key).set.call(e, value);
for (const w of arg.fields) {
  if (w.files) continue;
  const e = find(w);
  if (!e) continue;
  if ("value" in w) {
    if (e.value === w.value) continue;
    try { set(e, "value", w.value); } catch { missing.push(label(w)); continue; }
    tell(e, "input", ...(framed(e) ? ["change"] : []));
  } else if ("checked" in w) {
    if (e.checked !== w.checked) { if (framed(e)) e.click(); else { set(e, "checked", w.checked); tell(e, "input"); } }
    e.indeterminate = w.mixed;
  } else if ("chosen" in w) {
    const want = new Set(w.chosen.map(([i, value]) => {
      if (e.options[i]?.value === value) return i;
      const moved = [...e.options].findIndex((o) => o.value === value);
      if (moved < 0) missing.push(label(w) + " option " + value);
      return moved;
    }));
    let moved = false;
    [...e.options].forEach((o, i) => { if (o.selected !== want.has(i)) { moved = true; if (e.multiple) o.selected = want.has(i); } });
    if (moved && !e.multiple) e.selectedIndex = want.size ? [...want][0] : -1;
    if (moved) tell(e, "input", ...(framed(e) ? ["change"] : []));
  } else if ("html" in w && e.innerHTML !== w.html) {
    // Parsed without running anything: scripts that arrive through innerHTML never run.
    e.innerHTML = w.html;
    tell(e, "input");
  }
}
for (const w of arg.opens) {
  const e = find(w);
  if (!e) continue;
  if (w.popover) { if (!e.matches(":popover-open")) e.showPopover(); }
  else if (w.modal) { if (!e.matches(":modal")) { e.open = false; e.showModal(); } }
  else if (e.open !== w.open) e.open = w.open;
}
if (arg.focus) {
  const e = find(arg.focus);
  if (e) {
    e.focus({ preventScroll: true });
    if (arg.focus.caret) try { e.setSelectionRange(...arg.focus.caret); } catch { }
  }
} else if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur?.();
const node = (at) => at.reduce((n, i) => n?.childNodes[i] ?? null, document.documentElement);
if (arg.selection) {
  const from = node(arg.selection.from), to = node(arg.selection.to);
  try { getSelection().setBaseAndExtent(from, arg.selection.fromOffset, to, arg.selection.toOffset); } catch { missing.push("selection"); }
}
for (const w of arg.scrolls) { const e = find(w); if (e) e.scrollTo({ left: w.x, top: w.y, behavior: "instant" }); }
window.scrollTo({ left: arg.x, top: arg.y, behavior: "instant" });
if (arg.name !== window.name) window.name = arg.name;
if (Math.abs(scrollX - arg.x) > 1 || Math.abs(scrollY - arg.y) > 1) missing.push("scroll");
return missing;
