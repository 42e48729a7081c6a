'use strict'

// What a site's own file may use: `require(process.env.STATEFORK_HOOKS)`.

const { NoEnvironment, BindingEnded, current } = require('./bound')

module.exports = {
  NoEnvironment,
  BindingEnded,
  current, // the running code's binding: store(kind), keep(name, make), nonce
  isBound: () => { try { current(); return true } catch { return false } }
}
