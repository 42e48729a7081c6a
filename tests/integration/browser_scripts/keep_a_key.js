async () => {
  const key = await crypto.subtle.generateKey({ name: "AES-GCM", length: 128 }, false, ["encrypt"]);
  const open = indexedDB.open("keys");
  open.onupgradeneeded = () => open.result.createObjectStore("k");
  await new Promise((done) => { open.onsuccess = done; });
  const work = open.result.transaction("k", "readwrite");
  work.objectStore("k").put(key, 1);
  await new Promise((done) => { work.oncomplete = done; });
  open.result.close();
}
