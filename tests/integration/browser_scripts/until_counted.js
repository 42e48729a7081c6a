async (old) => {
  while (Number(localStorage.n) === old) await new Promise((done) => requestAnimationFrame(done));
}
