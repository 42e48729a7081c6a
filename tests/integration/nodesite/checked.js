'use strict'

// The admin as it is served, with what the tests ask beside its pages.

const fs = require('node:fs')
const { AsyncResource, AsyncLocalStorage } = require('node:async_hooks')
const path = require('node:path')
const { site, client, hooks, serve } = require('./site')
const statefork = (name) => require(path.join(process.env.STATEFORK_HOOKS, name))
const bound = statefork('bound')
const edge = statefork('edge')
const pg = statefork('pg')
const host = require.main.exports

const outside = new AsyncResource('TESTS') // made when no environment was there
let first = null
const back = []
let begun = [] // what requests began and nobody ends, as resources of a pool are

function replace (owner, name, instead) {
  const original = owner[name]
  back.push(() => { owner[name] = original })
  owner[name] = instead
}

const guards = {
  connections: () => replace(pg.routing, 'bound', () => (first = first && !first.ended ? first : bound.current())),
  callbacks: () => replace(pg.routing, 'back', (callback) => callback),
  emitters: () => replace(edge.emitters, 'bind', () => {}),
  uploads: () => replace(hooks, 'uploads', () => (hooks.shared = hooks.shared || bound.current().store('media').path)),
  work: () => replace(bound.counting, 'began', () => {}),
  closing: () => replace(host.operations, 'close', () => true),
  courses: () => replace(bound.Course.prototype, 'letGo', () => {}),
  release: () => {
    const { drop } = host.operations
    replace(host.operations, 'drop', (...asked) => { back.push(() => drop(...asked)); return true })
  }
}

const pages = {
  without: async ({ guard }) => guards[guard](),
  back: async () => { first = null; begun = []; while (back.length) back.pop()() },
  unbound: async () => {
    const met = (reach) => outside.runInAsyncScope(() => AsyncLocalStorage.bind(reach)().then(() => '', (e) => e.constructor.name))
    return {
      query: await met(async () => client.query('SELECT 1')),
      store: await met(async () => bound.current().store('media')),
      pool: await met(async () => new (require('pg').Pool)())
    }
  },
  remember: async ({ text }) => {
    const kept = bound.current().keep('remembered', () => [])
    kept.push(text)
    begun.push(new AsyncResource('TESTS'))
    return kept
  },
  later: async ({ pipe, word }) => {
    const add = () => client.query('INSERT INTO notes (title, body) VALUES ($1, $2)', ['later', word])
    fs.open(pipe, (error, opened) => error || fs.read(opened, () => fs.close(opened, add)))
  },
  soon: async ({ word }) => {
    for (const number of [1, 2, 3]) {
      setTimeout(() => client.query('INSERT INTO notes (title, body) VALUES ($1, $2)', ['soon', `${word} ${number}`]), 30)
    }
  },
  transaction: async ({ end }) => { await client.query(end ? 'COMMIT' : 'BEGIN') },
  endless: () => client.query('SELECT pg_sleep(600)')
}

site.get('/checked/:name', (request, response, next) => {
  pages[request.params.name](request.query).then((found) => response.json(found ?? null), next)
})
site.post('/checked/read', (request, response, next) => {
  let read = 0
  request.on('data', (part) => { read += part.length })
  request.on('end', () => {
    client.query('INSERT INTO notes (title, body) VALUES ($1, $2)', ['read', `${read}`]).then(() => response.json(read), next)
  })
})
serve()
