'use strict'

// The process behind the server: the application, and a channel to the server on standard input and output.
// Started by the adapter, never by hand.

const fs = require('node:fs')
const readline = require('node:readline')
const v8 = require('node:v8')

const told = JSON.parse(process.env.STATEFORK_BEHIND)
delete process.env.STATEFORK_BEHIND
process.stdout.write = process.stderr.write.bind(process.stderr) // the channel is not the application's to write into
v8.setFlagsFromString('--heap-snapshot-string-limit=16777216') // else a search sees the beginnings of strings

const statefork = require('./bound')
const edge = require('./edge')
const pg = require('./pg')

const say = (message) => fs.writeSync(1, JSON.stringify(message) + '\n')
statefork.begin(Buffer.from(told.key, 'hex'), say)
edge.install(told.ready, told.socket)
pg.install(told.connections_max, told.recorded ? JSON.parse(fs.readFileSync(told.recorded)) : {})

// Strings of the heap that hold a marker, which comes in two parts so that none of ours holds it.
async function holders (first, second) {
  global.gc()
  const found = []
  let rest = ''
  for await (const chunk of v8.getHeapSnapshot()) {
    const text = rest + chunk.toString('latin1')
    for (let at = text.indexOf(first); at >= 0; at = text.indexOf(first, at + 1)) {
      if (text.startsWith(second, at + first.length)) found.push(text.slice(Math.max(0, at - 60), at))
    }
    rest = text.slice(-first.length - second.length + 1)
  }
  return found
}

const operations = {
  bind ({ nonce, env, epoch, stores }) {
    if (!statefork.bounds.has(nonce)) statefork.bounds.set(nonce, new statefork.Bound(nonce, env, epoch, stores))
    return true
  },
  connections: (asked, bound) => (bound ? pg.clients(bound).size : 0),
  busy: (asked, bound) => (bound ? pg.busy(bound) : ''),
  close: (asked, bound) => { if (bound) pg.close(bound); return true },
  cut: (asked, bound) => { if (bound) bound.cut(); return true },
  drop ({ nonce }, bound) {
    if (!bound) return true
    bound.cut()
    statefork.bounds.delete(nonce)
    bound.kept.clear()
    return true
  },
  stats: () => ({
    bindings: [...statefork.bounds.values()].map((bound) => ({
      env: bound.env, epoch: bound.epoch, connections: pg.clients(bound).size, courses: bound.courses.size
    }))
  }),
  holders: ({ first, second }) => holders(first, second)
}
module.exports = { operations }

const channel = readline.createInterface({ input: process.stdin })
channel.on('line', async (line) => {
  const asked = JSON.parse(line)
  try {
    say({ id: asked.id, ok: await operations[asked.op](asked, statefork.bounds.get(asked.nonce)) })
  } catch (error) {
    say({ id: asked.id, error: `${error.name}: ${error.message}` })
  }
})
channel.on('close', () => process.exit(0))

require(told.application)
