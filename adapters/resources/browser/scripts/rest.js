// A selector engine that runs beside the page, in the world of Playwright's own scripts: what it changes there, the page
// can't see. To every look from there, the elements that some CSS selectors match are not displayed, and so are not in
// the accessibility tree, until it is called without any. Argument: the selectors as JSON, in hexadecimal digits.
{
  queryAll(root, hex) {
    const own = "statefork: taken out";
    const text = new TextDecoder().decode(new Uint8Array((hex.match(/../g) ?? []).map((two) => parseInt(two, 16))));
    const selectors = JSON.parse(text);
    if (!globalThis[own]) {
      const styleOf = globalThis.getComputedStyle;
      globalThis[own] = new WeakSet();
      globalThis.getComputedStyle = function (element, ...more) {
        const style = styleOf.call(globalThis, element, ...more);
        if (!globalThis[own].has(element)) return style;
        return new Proxy(style, { get: (of, name) => (name === "display" ? "none" : Reflect.get(of, name, of)) });
      };
    }
    const found = new WeakSet();
    const search = (within) => {
      for (const selector of selectors) for (const e of within.querySelectorAll(selector)) found.add(e);
      for (const e of within.querySelectorAll("*")) if (e.shadowRoot) search(e.shadowRoot);
    };
    if (selectors.length) search(document);
    globalThis[own] = found;
    return [document.documentElement];
  },
  query(root, hex) { return this.queryAll(root, hex)[0]; },
}
