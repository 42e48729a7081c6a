// Make an origin's storage what it was. Argument: {session, local, databases, caches}; null = leave alone.
// Returns what could not be put back.
const put = (store, wanted) => {
  if (!wanted) return;
  for (const key of Object.keys(store)) if (!(key in wanted)) store.removeItem(key);
  for (const key of Object.keys(wanted)) if (store.getItem(key) !== wanted[key]) store.setItem(key, wanted[key]);
};
const ended = (work) => new Promise((yes, no) => { work.oncomplete = yes; work.onabort = () => no(work.error ?? new Error("aborted")); });
const drop = (name) => new Promise((yes, no) => {
  const gone = indexedDB.deleteDatabase(name);
  gone.onsuccess = () => yes();
  gone.onerror = () => no(gone.error);
  gone.onblocked = () => no(new Error("database " + name + " is held open"));
});
const atPath = (path, value) => {
  const root = {};
  const names = path.split(".");
  let at = root;
  for (const name of names.slice(0, -1)) at = at[name] = {};
  at[names[names.length - 1]] = value;
  return root;
};
// Records with explicit numeric keys move a key generator themselves; deleted ones are made up for by one more.
const bump = (store, next) => {
  if (next === null || next <= 1) return;
  const find = store.getKey(next - 1);
  find.onsuccess = () => {
    if (find.result !== undefined) return;
    const key = next - 1;
    const add = store.keyPath === null ? store.add(0, key) : store.add(atPath(store.keyPath, key));
    add.onsuccess = () => store.delete(key);
  };
};
const fillStore = (db, shape) => {
  const work = db.transaction(shape.name, "readwrite");
  const store = work.objectStore(shape.name);
  store.clear();
  for (const [key, value] of shape.records) {
    if (shape.keyPath === null) store.put(unpack(value), unpack(key)); else store.put(unpack(value));
  }
  if (shape.auto) bump(store, shape.next);
  return ended(work);
};
const build = (wanted) => new Promise((yes, no) => {
  const open = indexedDB.open(wanted.name, wanted.version);
  open.onupgradeneeded = () => {
    for (const shape of wanted.stores) {
      const store = open.result.createObjectStore(shape.name, { keyPath: shape.keyPath, autoIncrement: shape.auto });
      for (const i of shape.indexes) store.createIndex(i.name, i.keyPath, { unique: i.unique, multiEntry: i.multi });
    }
  };
  open.onsuccess = () => yes(open.result);
  open.onerror = () => no(open.error);
  open.onblocked = () => no(new Error("database " + wanted.name + " is held open"));
});
const problems = [];
const attempt = async (what, work) => { try { await work(); } catch (error) { problems.push(what + ": " + (error?.message ?? error)); } };
if (arg.local) await attempt("localStorage", () => put(localStorage, arg.local));
if (arg.session) await attempt("sessionStorage", () => put(sessionStorage, arg.session));
if (arg.databases) {
  const wanted = new Set(arg.databases.map((d) => d.name));
  for (const { name } of await indexedDB.databases()) if (!wanted.has(name)) await attempt("indexedDB", () => drop(name));
  for (const database of arg.databases) {
    await attempt("indexedDB " + database.name, async () => {
      const db = await build(database);
      try { for (const shape of database.stores) await fillStore(db, shape); } finally { db.close(); }
    });
  }
}
if (arg.caches && self.caches) {
  for (const name of await caches.keys()) await caches.delete(name);
  for (const { name, entries } of arg.caches) {
    await attempt("cache " + name, async () => {
      const cache = await caches.open(name);
      for (const e of entries) {
        const body = [101, 204, 205, 304].includes(e.status) ? null : bytesOf(e.body);
        await cache.put(new Request(e.url, { method: e.method, headers: e.requestHeaders }),
          new Response(body, { status: e.status, statusText: e.statusText, headers: e.headers }));
      }
    });
  }
}
return problems;
