// What one frame shows and what a person did in it. Argument: {fileBytesMax, topOrigin}. Reads only.
const later = [], lost = [], notes = [];
const describe = (root) => (e) => {
  let at = [];
  for (let n = e; n && n !== root && n.nodeType === 1; n = n.parentElement) {
    let i = 1;
    for (let s = n.previousElementSibling; s; s = s.previousElementSibling) if (s.localName === n.localName) i++;
    at.unshift(CSS.escape(n.localName) + ":nth-of-type(" + i + ")");
  }
  return at.join(">");
};
const place = (e) => {
  const path = [];
  let node = e;
  for (;;) {
    const root = node.getRootNode();
    path.unshift(describe(root)(node));
    if (root.host === undefined) break;
    node = root.host;
  }
  return { path, id: e.id, name: e.getAttribute("name") ?? "", kind: e.localName + (e.type ? ":" + e.type : "") };
};
const every = function* (root) {
  for (const e of root.querySelectorAll("*")) { yield e; if (e.shadowRoot) yield* every(e.shadowRoot); }
};
const fields = [], scrolls = [], opens = [];
for (const e of every(document)) {
  const tag = e.localName;
  if (tag === "input" && e.type === "file") {
    if (e.files.length) {
      const files = [...e.files];
      if (files.reduce((sum, f) => sum + f.size, 0) > arg.fileBytesMax) notes.push(["file-too-big", files.map((f) => f.name).join(", ")]);
      else fields.push({ ...place(e), files: files.map((f) => { const p = pack(f, later, lost); p[3] = 0; return p; }) });  // times can't be set again
    }
  } else if (tag === "input" && (e.type === "checkbox" || e.type === "radio")) {
    fields.push({ ...place(e), checked: e.checked, mixed: e.indeterminate });
  } else if (tag === "input") {
    const passive = ["hidden", "submit", "button", "reset", "image"].includes(e.type);
    if (!passive || e.value !== e.defaultValue) fields.push({ ...place(e), value: e.value });
  } else if (tag === "textarea") fields.push({ ...place(e), value: e.value });
  else if (tag === "select") fields.push({ ...place(e), chosen: [...e.options].flatMap((o, i) => (o.selected ? [[i, o.value]] : [])) });
  else if (e.isContentEditable && !e.parentElement?.isContentEditable) fields.push({ ...place(e), html: e.innerHTML });
  else if (tag === "details") opens.push({ ...place(e), open: e.open });
  else if (tag === "dialog") opens.push({ ...place(e), open: e.open, modal: e.matches(":modal") });
  else if (e.popover && e.matches(":popover-open")) opens.push({ ...place(e), open: true, popover: true });
  if ((e.scrollTop || e.scrollLeft) && e !== document.scrollingElement) scrolls.push({ ...place(e), x: e.scrollLeft, y: e.scrollTop });
}
let focus = null;
let active = document.activeElement;
while (active?.shadowRoot?.activeElement) active = active.shadowRoot.activeElement;
if (active && active !== document.body && active !== document.documentElement && !["iframe", "frame"].includes(active.localName)) {
  let caret = null;
  try { if (active.selectionStart !== null && active.selectionStart !== undefined) caret = [active.selectionStart, active.selectionEnd, active.selectionDirection]; } catch { }
  focus = { ...place(active), caret };
}
const steps = (node) => {
  const at = [];
  for (; node && node !== document.documentElement; node = node.parentNode) {
    if (!node.parentNode) return null;
    at.unshift([...node.parentNode.childNodes].indexOf(node));
  }
  return node ? at : null;
};
let selection = null;
const range = getSelection();
if (range && range.anchorNode && (!range.isCollapsed || active?.isContentEditable)) {
  const from = steps(range.anchorNode), to = steps(range.focusNode);
  if (from && to) selection = { from, fromOffset: range.anchorOffset, to, toOffset: range.focusOffset };
}
const read = (get) => { try { const s = get(); return Object.fromEntries(Object.keys(s).map((k) => [k, s.getItem(k)])); } catch { return null; } };
let state = null;
try { state = pack(history.state, later, lost); } catch { }
// 0: not known; -1: Chromium's own error page.
let status = 0;
try { status = performance.getEntriesByType("navigation")[0]?.responseStatus ?? 0; } catch { }
if (location.protocol === "chrome-error:") status = -1;
try {
  if (self !== top && arg.topOrigin !== self.origin && (await indexedDB.databases()).length) notes.push(["frame-storage", self.origin]);
} catch { }
let entries = [], index = 0;
try { entries = navigation.entries().map((e) => e.sameDocument); index = navigation.currentEntry.index; } catch { }
await Promise.all(later);
// A cheap witness of what is to be read on the page; it is compared after a restore and is no part of the content.
let witness = 5381;
const shown = document.title + "\n" + (document.body ? document.body.innerText : "");
for (let i = 0; i < shown.length; i++) witness = (Math.imul(witness, 33) ^ shown.charCodeAt(i)) >>> 0;
return {
  opened: self.opener !== null, url: location.href, origin: self.origin, title: document.title, name: window.name, referrer: document.referrer,
  x: Math.round(scrollX), y: Math.round(scrollY), fields, scrolls, opens, focus, selection, state,
  status, session: read(() => sessionStorage), local: read(() => localStorage),
  sameDocument: entries, entryIndex: index, lost, notes, witness: shown.length + ":" + witness,
};
