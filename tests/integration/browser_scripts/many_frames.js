async () => {
  for (let i = 0; i < 60; i++) await new Promise((done) => requestAnimationFrame(done));
}
