// Register a service worker and wait until it is active. Argument: {script, scope, updateViaCache}.
const registration = await navigator.serviceWorker.register(arg.script, { scope: arg.scope, updateViaCache: arg.updateViaCache });
const worker = registration.installing ?? registration.waiting ?? registration.active;
if (worker.state !== "activated") {
  await new Promise((yes, no) => {
    worker.addEventListener("statechange", () => {
      if (worker.state === "activated") yes();
      if (worker.state === "redundant") no(new Error("the service worker " + arg.script + " did not install"));
    });
  });
}
return null;
