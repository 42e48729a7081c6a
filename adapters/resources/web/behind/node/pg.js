'use strict'

// Connections of the package `pg`: what the application holds is a front. Behind it each binding has a client of its own, to
// its own database. Before any environment is there, what the application asks is answered from a recording, or not at all.

const { AsyncResource } = require('node:async_hooks')
const { EventEmitter } = require('node:events')
const Module = require('node:module')
const { NoEnvironment, courses, current, closers, bounds } = require('./bound')
const edge = require('./edge')

const CLIENTS = Symbol('clients') // of a binding: front to client
let RealClient = null
let recorded = {}
let connectionsMax = 64

function address (bound) {
  const { host, port, name, user, password } = bound.store('database')
  return { host, port, user, password, database: name }
}

const routing = {
  bound: () => current(),
  // A callback of the driver's comes out of the connection's context: it must come in the asker's.
  back: (callback) => AsyncResource.bind(callback)
}

function clients (bound) {
  return bound.kept.get(CLIENTS) || new Map()
}

function isBusy (client) {
  return client.sfRunning > 0 || !['I', undefined].includes(client.sfStatus)
}

function shut (bound, front, client) {
  clients(bound).delete(front)
  client.sfShut = true
  client.end(() => {})
}

// Idle clients of who was served longest ago go first.
function makeRoom (mine) {
  const open = () => [...bounds.values()].reduce((sum, bound) => sum + clients(bound).size, 0)
  const others = [...bounds.values()].filter((bound) => bound !== mine && !bound.courses.size)
  others.sort((one, other) => (one.usedAt < other.usedAt ? -1 : 1))
  for (const bound of others) {
    if (open() < connectionsMax) return
    for (const [front, client] of clients(bound)) if (!isBusy(client)) shut(bound, front, client)
  }
}

function connect (bound, front) {
  makeRoom(bound)
  // in nobody's context: the client outlives the request that made it
  return courses.exit(() => {
    const client = new RealClient({ ...front.config, ...address(bound), connectionString: undefined })
    client.sfRunning = 0
    client.sfShut = false
    client.on('error', () => forget(bound, front, client))
    client.on('end', () => forget(bound, front, client))
    client.connection.on('readyForQuery', (told) => { client.sfStatus = told.status })
    client.connect(() => {}) // a failure is told to every query that waits
    return client
  })
}

function forget (bound, front, client) {
  client.sfGone = true
  if (clients(bound).get(front) === client) clients(bound).delete(front)
}

function client (front) {
  const bound = routing.bound()
  const mine = bound.keep(CLIENTS, () => new Map())
  if (!mine.has(front)) mine.set(front, connect(bound, front))
  return mine.get(front)
}

function lost (course, client, error) {
  if (error && (client.sfGone || !client._connected) && !client.sfShut && !course.bound.ended) {
    course.lost = `database was lost: ${error.message}`
  }
}

// Count a query until its end, and bring its result back into the context that asked.
function counted (course, client, given) {
  let over = false
  course.take()
  client.sfRunning += 1
  const end = (error) => {
    if (over) return
    over = true
    client.sfRunning -= 1
    lost(course, client, error)
    course.done()
  }
  const last = given.findIndex((value) => typeof value === 'function')
  if (last >= 0) {
    const callback = routing.back(given[last])
    given[last] = (error, result) => {
      try { callback(error, result) } finally { end(error) }
    }
    return client.query(...given)
  }
  const answer = client.query(...given)
  if (typeof answer.then === 'function') {
    answer.then(() => end(), end)
    return answer
  }
  edge.emitters.bind(answer, course)
  answer.once('end', () => end())
  answer.once('error', end)
  return answer
}

function answerFromRecording (given) {
  const text = typeof given[0] === 'string' ? given[0] : given[0].text
  const callback = given.find((value) => typeof value === 'function')
  const found = recorded[text]
  const error = found ? null : new NoEnvironment(`no environment is bound to this code, and no recording answers: ${text}`)
  if (callback) return void process.nextTick(callback, error, found)
  return error ? Promise.reject(error) : Promise.resolve(found)
}

class Client extends EventEmitter {
  constructor (config) {
    super()
    this.config = typeof config === 'string' ? { connectionString: config } : { ...config }
    this.connectionParameters = new RealClient(this.config).connectionParameters
  }

  connect (callback) {
    if (callback) return void process.nextTick(callback, null, this)
    return Promise.resolve()
  }

  query (...given) {
    const course = courses.getStore()
    if (!course) return answerFromRecording(given)
    return counted(course, client(this), given)
  }

  end (callback) {
    const course = courses.getStore()
    const mine = course && clients(course.bound).get(this)
    if (mine) shut(course.bound, this, mine)
    return this.connect(callback)
  }

  release () {}

  escapeIdentifier (text) {
    return RealClient.prototype.escapeIdentifier(text)
  }

  escapeLiteral (text) {
    return RealClient.prototype.escapeLiteral(text)
  }
}

class Pool {
  constructor () {
    throw new NoEnvironment('a pg.Pool would be shared by all environments: use a pg.Client, which is one for each')
  }
}

function install (most, answers) {
  connectionsMax = most
  recorded = answers
  const load = Module._load
  Module._load = function (name, ...rest) {
    const loaded = load.call(this, name, ...rest)
    if (name !== 'pg') return loaded
    if (!RealClient) {
      RealClient = loaded.Client
      Object.defineProperty(loaded, 'Client', { value: Client })
      Object.defineProperty(loaded, 'Pool', { value: Pool })
    }
    return loaded
  }
  closers.push((bound) => {
    for (const client of clients(bound).values()) client.connection.stream.destroy()
  })
  edge.checks.push(async () => {
    if (!RealClient || !current().stores.database) return
    const probe = new Client({})
    await probe.query('SELECT 1')
    probe.end()
  })
}

function busy (bound) {
  return [...clients(bound).values()].some(isBusy) ? 'a connection is in use' : ''
}

function close (bound) {
  for (const [front, client] of clients(bound)) shut(bound, front, client)
}

module.exports = { install, routing, clients, busy, close }
