// The page as it stands, without what would make it something else when it is loaded once more.
() => {
    const copy = document.documentElement.cloneNode(true);
    const live = document.documentElement.querySelectorAll("input, textarea, option, details, dialog");
    const still = copy.querySelectorAll("input, textarea, option, details, dialog");
    live.forEach((element, index) => {
        const twin = still[index];
        if (element.localName === "textarea") {
            twin.textContent = element.value;
        } else if (element.localName === "option") {
            twin.toggleAttribute("selected", element.selected);
        } else if (element.localName === "input") {
            twin.toggleAttribute("checked", element.checked);
            if (element.type !== "file") twin.setAttribute("value", element.value);
        } else {
            twin.toggleAttribute("open", element.open);
        }
    });
    copy.querySelectorAll("script, meta[http-equiv='refresh' i], meta[http-equiv='Content-Security-Policy' i]")
        .forEach((element) => element.remove());
    [copy, ...copy.querySelectorAll("*")].forEach((element) => {
        for (const { name } of [...element.attributes]) {
            if (name.startsWith("on")) element.removeAttribute(name);
        }
    });
    const kind = document.doctype ? new XMLSerializer().serializeToString(document.doctype) : "";
    return kind + copy.outerHTML;
}
