// Go to a page whose answer does not come yet, and change the address while it is awaited.
() => {
  location.href = "/slow";
  fetch("/when-slow-was-asked").then(() => history.replaceState(null, "", "/meanwhile"));
}
