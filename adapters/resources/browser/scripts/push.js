// Make a history entry of the stub's document. Argument: {state (packed), url, replace}.
if (arg.replace) history.replaceState(unpack(arg.state), "", arg.url); else history.pushState(unpack(arg.state), "", arg.url);
return null;
