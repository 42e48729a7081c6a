// What must be noted before a tab leaves this history entry.
const read = () => { try { return Object.fromEntries(Object.keys(sessionStorage).map((k) => [k, sessionStorage.getItem(k)])); } catch { return null; } };
const later = [];
let state = null;
try { state = pack(history.state, later, []); } catch { }
await Promise.all(later);
return { state, session: read(), url: location.href };
