// Structured values as JSON and back: whatever structured clone carries, so that IndexedDB records, history.state and
// form files survive. A compound is an array that begins with its tag; an object met again is a reference to its index.
const base64 = (buffer) => {
  const bytes = new Uint8Array(buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
};
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const viewName = (view) => Object.prototype.toString.call(view).slice(8, -1);

// `later` collects promises (a Blob's bytes are not there at once); `lost` collects the names of what can't be carried.
const pack = (value, later, lost) => {
  const seen = new Map();
  const fill = (blob, node) => {
    later.push(blob.arrayBuffer().then((b) => node.push(base64(b)), () => { lost.push("unreadable " + viewName(blob)); node.push(""); }));
    return node;
  };
  const walk = (v) => {
    if (v === null || typeof v === "string" || typeof v === "boolean") return v;
    if (typeof v === "number") return Number.isFinite(v) && !Object.is(v, -0) ? v : ["n", Object.is(v, -0) ? "-0" : String(v)];
    if (v === undefined) return ["u"];
    if (typeof v === "bigint") return ["i", String(v)];
    if (typeof v !== "object") { lost.push(typeof v); return ["?", typeof v]; }
    if (seen.has(v)) return ["r", seen.get(v)];
    seen.set(v, seen.size);
    const name = viewName(v);
    if (name === "Date") return ["d", v.getTime() === v.getTime() ? v.getTime() : null];
    if (name === "RegExp") return ["x", v.source, v.flags];
    if (name === "ArrayBuffer") return ["b", base64(v)];
    if (ArrayBuffer.isView(v)) return ["v", name, base64(v.buffer.slice(v.byteOffset, v.byteOffset + v.byteLength))];
    if (name === "Blob") return fill(v, ["l", v.type]);
    if (name === "File") return fill(v, ["f", v.name, v.type, v.lastModified]);
    if (name === "ImageData") return ["p", v.width, v.height, base64(v.data.buffer)];
    if (name === "Map") return ["m", [...v].map(([k, w]) => [walk(k), walk(w)])];
    if (name === "Set") return ["s", [...v].map(walk)];
    if (name === "Error") return ["e", v.name, v.message];
    if (name === "String" || name === "Number" || name === "Boolean") return ["w", name, walk(v.valueOf())];
    if (Array.isArray(v)) return ["a", Array.from(v, walk)];
    if (name === "Object") return ["o", Object.keys(v).map((k) => [k, walk(v[k])])];
    lost.push(name);
    return ["?", name];
  };
  return walk(value);
};

const unpack = (packed) => {
  const seen = [];
  const keep = (v) => { seen.push(v); return v; };
  const build = (p) => {
    if (!Array.isArray(p)) return p;
    const [tag, a, b, c, d] = p;
    switch (tag) {
      case "n": return Number(a);
      case "u": return undefined;
      case "i": return BigInt(a);
      case "r": return seen[a];
      case "d": return keep(new Date(a === null ? NaN : a));
      case "x": return keep(new RegExp(a, b));
      case "b": return keep(bytesOf(a).buffer);
      case "v": return keep(a === "DataView" ? new DataView(bytesOf(b).buffer) : new globalThis[a](bytesOf(b).buffer));
      case "l": return keep(new Blob([bytesOf(b)], { type: a }));
      case "f": return keep(new File([bytesOf(d)], a, { type: b, lastModified: c }));
      case "p": return keep(new ImageData(new Uint8ClampedArray(bytesOf(c).buffer), a, b));
      case "m": { const m = keep(new Map()); for (const [k, w] of a) m.set(build(k), build(w)); return m; }
      case "s": { const s = keep(new Set()); for (const w of a) s.add(build(w)); return s; }
      case "e": { const e = keep(new (globalThis[a] ?? Error)(b)); return e; }
      case "w": return keep(Object(a === "String" ? String(b) : b));
      case "a": { const l = keep([]); for (const w of a) l.push(build(w)); return l; }
      case "o": { const o = keep({}); for (const [k, w] of a) o[k] = build(w); return o; }
      default: keep(null); return null;
    }
  };
  return build(packed);
};
