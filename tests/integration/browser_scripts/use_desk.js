() => {
  const $ = (id) => document.getElementById(id);
  $("rich").innerHTML = "<b>rich</b> text";
  $("more").open = true;
  $("list").scrollTop = 777;
  $("shadow").shadowRoot.getElementById("deep").value = "deep";
  $("inner").contentDocument.getElementById("inside").value = "inside";
  $("inner").contentWindow.scrollTo(0, 55);
  sessionStorage.here = "yes";
  window.name = "desk window";
  history.pushState({ map: new Map([["step", 2]]) }, "", "/desk.html?step=2");
  history.pushState(null, "", "/desk.html?step=3");
  history.back();
}
