async () => {
  const open = indexedDB.open("d");
  open.onupgradeneeded = () => open.result.createObjectStore("s");
  await new Promise((done) => { open.onsuccess = done; });
  const work = open.result.transaction("s", "readwrite");
  work.objectStore("s").put(Math.random(), 1);
  await new Promise((done) => { work.oncomplete = done; });
  open.result.close();
}
