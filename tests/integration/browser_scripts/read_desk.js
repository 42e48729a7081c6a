() => {
  const $ = (id) => document.getElementById(id);
  return {
    name: $("name").value, note: $("note").value, colour: $("colour").value,
    sizes: [...$("sizes").selectedOptions].map((o) => o.value), gift: $("gift").checked, cash: $("cash").checked,
    files: [...$("files").files].map((f) => [f.name, f.type, f.size]), rich: $("rich").innerHTML, more: $("more").open,
    modal: $("box").matches(":modal"), list: $("list").scrollTop, y: scrollY,
    deep: $("shadow").shadowRoot.getElementById("deep").value,
    inside: $("inner").contentDocument.getElementById("inside").value, innerY: $("inner").contentWindow.scrollY,
    focus: document.activeElement.id, caret: [$("note").selectionStart, $("note").selectionEnd], windowName: window.name,
    state: history.state?.map?.get("step"), length: history.length, visits: localStorage.visits,
    loads: sessionStorage.loads, here: sessionStorage.here, url: location.pathname + location.search,
  };
}
