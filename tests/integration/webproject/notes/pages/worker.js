// A worker that polls when a page says so. Each poll writes a note of its own, and its answer is told to the pages.
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("message", ({ data }) => (data.poll ? setInterval(poll, data.poll) : wait(data.wait)));

let number = 0;
let polling = false;

async function tell(what) {
  for (const page of await clients.matchAll()) page.postMessage(what);
}

async function poll() {
  if (polling) return;
  polling = true;
  const title = `poll ${String(++number).padStart(5, "0")}`;
  const body = new URLSearchParams({ title });
  const status = await fetch("/add/?by=worker", { method: "POST", body }).then((answer) => answer.status, () => 0);
  await tell({ title, status });
  polling = false;
}

// A long poll: its answer begins at once and ends when the server says so.
async function wait(url) {
  const reader = (await fetch(url)).body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) await tell({ long: part.value });
    await tell({ long: "end" });
  } catch {
    await tell({ long: "cut" });
  }
}
