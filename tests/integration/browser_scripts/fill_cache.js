async () => {
  await navigator.serviceWorker.register("/worker.js");
  await navigator.serviceWorker.ready;
  const shelf = await caches.open("shelf");
  await shelf.put("/kept", new Response("kept", { headers: { "x-a": "b" } }));
}
