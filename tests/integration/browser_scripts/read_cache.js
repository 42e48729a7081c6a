async () => {
  const kept = await caches.match("/kept");
  return [await kept.text(), kept.headers.get("x-a"), await fetch("/from-worker").then((r) => r.text())];
}
