'use strict'

// The outermost listener of the application's server: one environment for each request, until all that it caused is over.

const http = require('node:http')
const net = require('node:net')
const { admit } = require('./bound')

const HEADER = 'statefork-bound'
const checks = [] // what a probe does in the binding: each throws when a store can't be reached

// What an emitter tells, it tells in the request's context: the parser's own is nobody's.
const emitters = {
  bind (emitter, course) {
    const emit = emitter.emit
    emitter.emit = function (...told) {
      return course.run(() => emit.apply(this, told))
    }
  }
}

function hide (request) {
  const header = request.headers[HEADER]
  delete request.headers[HEADER]
  const raw = request.rawHeaders
  for (let at = raw.length - 2; at >= 0; at -= 2) if (raw[at].toLowerCase() === HEADER) raw.splice(at, 2)
  return header
}

// An answer that was made while a store was lost says so: it is not the application's word.
function tellLost (response, course) {
  const writeHead = response.writeHead
  response.writeHead = function (...given) {
    if (course.lost && !course.bound.ended) this.setHeader('Statefork-Lost', course.lost.replace(/[^ -~]/g, ' ').slice(0, 500))
    return writeHead.apply(this, given)
  }
}

async function answerProbe (response) {
  try {
    for (const check of checks) await check()
    response.writeHead(204).end()
  } catch (error) {
    response.writeHead(503).end(`${error.name}: ${error.message}`)
  }
}

function install (ready, socket) {
  const emit = http.Server.prototype.emit
  http.Server.prototype.emit = function (event, request, response) {
    if (event === 'upgrade' || event === 'connect') {
      arguments[2].destroy()
      return true
    }
    if (event !== 'request') return emit.apply(this, arguments)
    const course = admit(hide(request))
    if (!course) {
      response.writeHead(421, { 'Content-Length': 0, Connection: 'close' }).end()
      return true
    }
    course.response = response
    emitters.bind(request, course)
    emitters.bind(response, course)
    tellLost(response, course)
    response.on('close', () => course.done())
    return course.run(() => request.url === ready ? answerProbe(response) : emit.call(this, event, request, response))
  }

  // Wherever the application wants to listen, it does so where the server of ours finds it; once.
  const listen = net.Server.prototype.listen
  let listening = false
  net.Server.prototype.listen = function (...asked) {
    if (listening || !(this instanceof http.Server)) throw new Error('the application may listen once, with an HTTP server')
    listening = true
    const called = asked.filter((value) => typeof value === 'function')
    return listen.call(this, { path: socket }, ...called)
  }
}

module.exports = { install, emitters, checks }
