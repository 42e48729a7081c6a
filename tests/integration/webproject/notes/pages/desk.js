// The page does nothing by itself: a test calls these functions, and reads in `seen` what came of it.
const seen = { slow: "", long: "", events: [], socket: [], polls: [] };
let socket;

const form = (title) => new URLSearchParams({ title });

// A worker that controls this page; what it tells its pages is noted.
async function hireWorker() {
  const workers = navigator.serviceWorker;
  workers.addEventListener("message", ({ data }) => {
    if (data.title) seen.polls.push([data.title, data.status]);
    else seen.long += data.long;
  });
  workers.startMessages();
  const controlled = new Promise((done) => workers.addEventListener("controllerchange", done, { once: true }));
  await workers.register("worker.js");
  if (!workers.controller) await controlled;
}

function tellWorker(what) {
  navigator.serviceWorker.controller.postMessage(what);
}

// A response that is read as it comes.
async function readSlowly(url) {
  const reader = (await fetch(url)).body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) seen.slow += part.value;
    seen.slow += "end";
  } catch {
    seen.slow += "cut";
  }
}

function listen(url) {
  const events = new EventSource(url);
  events.onopen = () => seen.events.push("open");
  events.onmessage = ({ data }) => seen.events.push(data);
}

function talk(url) {
  socket = new WebSocket(url);
  socket.onopen = () => socket.send("before");
  socket.onmessage = ({ data }) => seen.socket.push(data);
  socket.onclose = () => seen.socket.push("closed");
}

function beacon(title) {
  return navigator.sendBeacon("/add/?by=beacon", form(title));
}

function sayGoodbye(title) {
  addEventListener("pagehide", () => navigator.sendBeacon("/add/?by=pagehide", form(title)));
}
