// Chance and time of a document, as they are given to it: {seed, offset, strict}. Runs before any script of the page,
// and again in a document that is there already when others are given.
// `offset` (ms) is what its clock differs by from the real one; in strict determinism Playwright's clock stands instead.
(given, how) => {
  const KEY = Symbol.for("statefork.conditions");
  if (window[KEY]) {
    window[KEY](given, how);
    return;
  }

  // --- chance: sfc32, begun from a 128-bit hash of the seed and of the document's place
  let a, b, c, d;
  const next = () => {
    const sum = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + sum) | 0;
    return sum >>> 0;
  };
  const begin = (text) => {
    let [h1, h2, h3, h4] = [1779033703, 3144134277, 1013904242, 2773480762];
    for (let i = 0; i < text.length; i++) {
      const k = text.charCodeAt(i);
      h1 = h2 ^ Math.imul(h1 ^ k, 597399067);
      h2 = h3 ^ Math.imul(h2 ^ k, 2869860233);
      h3 = h4 ^ Math.imul(h3 ^ k, 951274213);
      h4 = h1 ^ Math.imul(h4 ^ k, 2716044179);
    }
    [a, b, c, d] = [h1, h2, h3, h4];
    for (let i = 0; i < 16; i++) next();
  };
  // Frames of one address draw different numbers: each is told by the way from the top to it.
  const place = () => {
    const way = [];
    for (let frame = window; frame !== frame.parent && way.length < 32; frame = frame.parent) {
      let index = 0;
      while (index < frame.parent.length && frame.parent[index] !== frame) index++;
      way.push(index);
    }
    return way.join("/");
  };
  const { getRandomValues } = Crypto.prototype;
  const define = (object, name, value) => {
    const { enumerable = false } = Object.getOwnPropertyDescriptor(object, name) ?? {};
    Object.defineProperty(object, name, { value, configurable: true, writable: true, enumerable });
  };
  const instead = {
    random() {
      return ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
    },
    getRandomValues(array) {
      getRandomValues.call(this, array); // refuses what it refuses
      const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
      for (let i = 0; i < bytes.length; i++) bytes[i] = next() >>> 24;
      return array;
    },
    randomUUID() {
      const bytes = Array.from({ length: 16 }, () => next() >>> 24);
      bytes[6] = (bytes[6] & 15) | 64;
      bytes[8] = (bytes[8] & 63) | 128;
      const hex = bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
      return hex.replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
    },
  };
  define(Math, "random", instead.random);
  define(Crypto.prototype, "getRandomValues", instead.getRandomValues);
  if (Crypto.prototype.randomUUID) define(Crypto.prototype, "randomUUID", instead.randomUUID);

  // --- time: a page whose clock is the real one keeps its own Date
  let offset = 0;
  let moved = false;
  const RealDate = Date;
  const realNow = RealDate.now;
  const move = () => {
    moved = true;
    const now = () => realNow() + offset;
    const Given = function Date(...parts) {
      if (!new.target) return new RealDate(now()).toString();
      return Reflect.construct(RealDate, parts.length ? parts : [now()], new.target);
    };
    Object.defineProperty(Given, "length", { value: 7 });
    Object.defineProperty(Given, "prototype", { value: RealDate.prototype, writable: false });
    for (const name of ["parse", "UTC"]) define(Given, name, RealDate[name]);
    define(Given, "now", now);
    RealDate.prototype.constructor = Given;
    Object.defineProperty(window, "Date", { value: Given, configurable: true, writable: true });
    const format = Object.getOwnPropertyDescriptor(Intl.DateTimeFormat.prototype, "format").get;
    const { formatToParts } = Intl.DateTimeFormat.prototype;
    Object.defineProperty(Intl.DateTimeFormat.prototype, "format", {
      get() {
        const bound = format.call(this);
        return (date) => bound(date === undefined ? now() : date);
      },
      configurable: true,
    });
    define(Intl.DateTimeFormat.prototype, "formatToParts", function (date) {
      return formatToParts.call(this, date === undefined ? now() : date);
    });
    const origin = Object.getOwnPropertyDescriptor(Performance.prototype, "timeOrigin").get;
    Object.defineProperty(Performance.prototype, "timeOrigin", {
      get() {
        return origin.call(this) + offset;
      },
      configurable: true,
      enumerable: true,
    });
  };

  // --- strict: nothing moves by itself, and Playwright's clock does not count the milliseconds of its own set-up
  const still = () => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(
      "*,*::before,*::after{animation:none!important;transition:none!important;caret-color:transparent!important;" +
        "scroll-behavior:auto!important}progress:indeterminate{appearance:none!important}",
    );
    document.adoptedStyleSheets.push(sheet);
  };
  const start = (conditions, kind) => {
    begin([conditions.seed, kind, location.href, place()].join("|"));
    if (conditions.strict) {
      globalThis.__pwClock?.controller?._log?.forEach((entry) => (entry.time = 1));
      return;
    }
    offset = conditions.offset;
    if (offset && !moved) move();
  };
  Object.defineProperty(window, KEY, { value: start });
  start(given, how);
  if (given.strict) still();
}
