async () => {
  const open = indexedDB.open("shop");
  const db = await new Promise((done) => { open.onsuccess = () => done(open.result); });
  const work = db.transaction(["goods", "odd"], "readwrite");
  const ask = (request) => new Promise((done) => { request.onsuccess = () => done(request.result); });
  const jug = await ask(work.objectStore("goods").index("by name").get("jug"));
  const cup = await ask(work.objectStore("goods").get(1));
  const odd = await ask(work.objectStore("odd").get(["key", 1]));
  const next = await ask(work.objectStore("goods").add({ name: "new" }));
  const found = {
    version: db.version, unique: work.objectStore("goods").index("by name").unique, jug: jug.size.get("h") === 3n,
    cup: cup.at.getTime(), tags: [...cup.tags], bytes: [...odd.bytes], own: odd.me === odd, nan: Number.isNaN(odd.nan),
    not: "not" in odd && odd.not === undefined, next, names: [...db.objectStoreNames],
  };
  db.close();
  return { ...found, blob: await odd.blob.text() };
}
