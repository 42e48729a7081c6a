async () => {
  const open = indexedDB.open("shop", 3);
  open.onupgradeneeded = () => {
    const goods = open.result.createObjectStore("goods", { keyPath: "id", autoIncrement: true });
    goods.createIndex("by name", "name", { unique: true });
    open.result.createObjectStore("odd");
  };
  const db = await new Promise((done) => { open.onsuccess = () => done(open.result); });
  const work = db.transaction(["goods", "odd"], "readwrite");
  work.objectStore("goods").add({ name: "cup", at: new Date(86400000), tags: new Set(["a", "b"]) });
  work.objectStore("goods").add({ name: "jug", size: new Map([["h", 3n]]) });
  work.objectStore("goods").add({ name: "gone" });
  work.objectStore("goods").delete(3);
  const self = { bytes: new Uint8Array([1, 2, 255]), blob: new Blob(["blob"], { type: "text/plain" }), nan: NaN, not: undefined };
  self.me = self;
  work.objectStore("odd").put(self, ["key", 1]);
  await new Promise((done) => { work.oncomplete = done; });
  db.close();
}
