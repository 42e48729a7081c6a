async () => {
  const root = await navigator.storage.getDirectory();
  await root.getFileHandle("f", { create: true });
}
