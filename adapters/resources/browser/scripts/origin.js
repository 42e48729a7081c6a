// What one origin has stored besides sessionStorage. Argument: {charsMax}. Returns {local, databases, caches, workers, notes}.
const notes = [];
let left = arg.charsMax;
const weigh = (value) => { left -= JSON.stringify(value).length; return left >= 0; };
const done = (request) => new Promise((yes, no) => { request.onsuccess = () => yes(request.result); request.onerror = () => no(request.error); });
// The next key of a key generator: taken by an insertion that is rolled back, generator included.
const nextKey = (db, name) => new Promise((yes) => {
  const work = db.transaction(name, "readwrite");
  const store = work.objectStore(name);
  let key = null;
  const add = store.keyPath === null ? store.add(0) : store.add({});
  add.onsuccess = () => { key = typeof add.result === "number" ? add.result : null; work.abort(); };
  add.onerror = (event) => { event.preventDefault(); };
  work.onabort = work.oncomplete = () => yes(key);
});
const readStore = async (db, name) => {
  const store = db.transaction(name, "readonly").objectStore(name);
  const shape = {
    name, keyPath: store.keyPath, auto: store.autoIncrement, next: null,
    indexes: [...store.indexNames].map((n) => { const i = store.index(n); return { name: n, keyPath: i.keyPath, unique: i.unique, multi: i.multiEntry }; }),
    records: [],
  };
  const [keys, values] = await Promise.all([done(store.getAllKeys()), done(store.getAll())]);
  for (let i = 0; i < keys.length; i++) {
    const later = [], lost = [];
    const record = [pack(keys[i], later, lost), pack(values[i], later, lost)];
    await Promise.all(later);
    for (const what of lost) notes.push(["indexeddb-value", db.name + "/" + name + ": " + what]);
    if (!weigh(record)) { notes.push(["indexeddb-too-big", db.name + "/" + name]); shape.records = []; break; }
    shape.records.push(record);
  }
  if (store.autoIncrement) shape.next = await nextKey(db, name);
  return shape;
};
const databases = [];
try {
  const names = (await indexedDB.databases()).map((d) => d.name).sort();
  for (const name of names) {
    const db = await new Promise((yes, no) => {
      const open = indexedDB.open(name);
      open.onsuccess = () => yes(open.result);
      open.onerror = () => no(open.error);
      open.onblocked = () => no(new Error("blocked"));
      setTimeout(() => no(new Error("does not open")), 3000);
    }).catch((error) => { notes.push(["indexeddb-unreadable", name + ": " + error.message]); return null; });
    if (!db) continue;
    try {
      const stores = [];
      for (const store of db.objectStoreNames) stores.push(await readStore(db, store));
      databases.push({ name, version: db.version, stores });
    } finally { db.close(); }
  }
} catch (error) { if (self.indexedDB && self.origin !== "null") notes.push(["indexeddb-unreadable", String(error)]); }

const kept = [];
if (self.caches) {
  for (const name of await caches.keys()) {
    const cache = await caches.open(name);
    const entries = [];
    for (const request of await cache.keys()) {
      const response = await cache.match(request);
      if (response.type === "opaque" || response.type === "error") { notes.push(["cache-opaque", name + " " + request.url]); continue; }
      const entry = { url: request.url, method: request.method, requestHeaders: [...request.headers], status: response.status,
        statusText: response.statusText, headers: [...response.headers], body: base64(await response.arrayBuffer()) };
      if (!weigh(entry)) { notes.push(["cache-too-big", name + " " + request.url]); continue; }
      entries.push(entry);
    }
    kept.push({ name, entries });
  }
}
const workers = [];
if (navigator.serviceWorker) {
  for (const r of await navigator.serviceWorker.getRegistrations()) {
    const worker = r.active ?? r.waiting ?? r.installing;
    if (worker) workers.push({ scope: r.scope, script: worker.scriptURL, updateViaCache: r.updateViaCache });
  }
}
if (navigator.storage?.getDirectory) {
  try { for await (const [name] of (await navigator.storage.getDirectory()).entries()) notes.push(["opfs", name]); } catch { }
}
const local = {};
for (const key of Object.keys(localStorage)) local[key] = localStorage.getItem(key);
return { local, databases, caches: kept, workers, notes };
