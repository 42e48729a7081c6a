"""The engine over HTTP: the control door's verbs as resources, for programs on this and other machines."""
