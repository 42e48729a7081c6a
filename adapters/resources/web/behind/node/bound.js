'use strict'

// Which environment the running code belongs to, and what of it is still at work.
//
// Everything that is kept of an environment hangs on a Bound. Without one nothing opens a store.

const { AsyncLocalStorage, createHook } = require('node:async_hooks')
const crypto = require('node:crypto')

class NoEnvironment extends Error {}
class BindingEnded extends Error {}

const courses = new AsyncLocalStorage()
const bounds = new Map()
let key = null
let tell = () => {}

// One binding of an environment, by a nonce that no other binding bears.
class Bound {
  constructor (nonce, env, epoch, stores) {
    Object.assign(this, { nonce, env, epoch, stores, ended: false, usedAt: 0 })
    this.kept = new Map()
    this.courses = new Set()
  }

  check () {
    if (this.ended) throw new BindingEnded(`${this.env}@${this.epoch} was ended: its stores are closed to this code`)
  }

  store (kind) {
    this.check()
    if (!this.stores[kind]) throw new NoEnvironment(`the contract declares no store ${kind}`)
    return this.stores[kind]
  }

  // What is kept for the environment under a name, made when it is first asked for.
  keep (name, make) {
    this.check()
    if (!this.kept.has(name)) this.kept.set(name, make())
    return this.kept.get(name)
  }

  cut () {
    if (this.ended) return
    this.ended = true
    for (const closer of closers) closer(this)
    for (const course of [...this.courses]) course.cut()
  }
}

// One request and all that it has caused. It ends when the last of that does.
class Course {
  constructor (bound, number) {
    Object.assign(this, { bound, number, open: 1, lost: '', response: null })
    this.timers = new Set()
    bound.courses.add(this)
  }

  take () {
    this.open += 1
  }

  done () {
    this.open -= 1
    if (this.open !== 0) return
    this.letGo()
    this.bound.courses.delete(this)
    tell({ event: 'ended', work: this.number })
  }

  cut () {
    for (const timer of [...this.timers]) clearTimeout(timer)
    if (this.response) this.response.destroy()
    this.letGo()
  }

  // A course lives as long as anything that was begun in it, also what is kept beyond it: the timer by which node's own cache
  // of the date ends, a resource of a pool. None of that keeps the request and the answer, with all that hangs on them.
  letGo () {
    this.response = null
  }

  run (work) {
    return courses.run(this, work)
  }
}

const closers = []

// What the event loop does for a request by itself, with an end that it tells of: counted as the request's. Not in this list:
// what ends when its memory is collected (jobs of crypto), and what a request need not have begun alone (sockets).
const ONCE = new Set(['Immediate', 'TickObject', 'FSREQCALLBACK', 'FSREQPROMISE', 'GETADDRINFOREQWRAP'])
const running = new Map()

const counting = {
  began (id, type, resource) {
    const course = courses.getStore()
    if (!course || !(type === 'Timeout' || ONCE.has(type))) return
    if (type === 'Timeout') {
      if (!resource.hasRef()) return // the loop's own: a socket that is watched for silence
      course.timers.add(resource)
    }
    course.take()
    running.set(id, { course, resource: type === 'Timeout' ? resource : null })
  },
  called (id) {
    if (running.get(id)?.resource === null) this.ended(id)
  },

  ended (id) {
    const found = running.get(id)
    if (!found) return
    running.delete(id)
    found.course.timers.delete(found.resource)
    found.course.done()
  }
}

createHook({
  init: (id, type, trigger, resource) => counting.began(id, type, resource),
  after: (id) => counting.called(id),
  destroy: (id) => counting.ended(id)
}).enable()

// An error that nobody catches ends node, and with it what everybody is served by. After a cut that is how what was left
// running ends: its stores are closed to it, its sockets shut. It ends alone.
process.on('uncaughtException', (error) => {
  if (error instanceof BindingEnded || courses.getStore()?.bound.ended) return
  if (process.listenerCount('uncaughtException') > 1) return // the application decides
  console.error(error)
  process.exit(1)
})

function begin (secret, telling) {
  key = secret
  tell = telling
}

function current () {
  const course = courses.getStore()
  if (!course) throw new NoEnvironment('no environment is bound to this code')
  course.bound.check()
  return course.bound
}

// The course that a request's header proves; null when it proves none.
function admit (header) {
  const [text, mac] = String(header || '').split('.')
  const due = crypto.createHmac('sha256', key).update(text).digest()
  const given = Buffer.from(mac || '', 'hex')
  if (given.length !== due.length || !crypto.timingSafeEqual(given, due)) return null
  const told = JSON.parse(Buffer.from(text, 'base64url').toString())
  const bound = bounds.get(told.nonce)
  if (!bound || bound.ended) return null
  bound.usedAt = process.hrtime.bigint()
  return new Course(bound, told.work)
}

module.exports = { NoEnvironment, BindingEnded, Bound, Course, bounds, courses, closers, counting, begin, current, admit }
