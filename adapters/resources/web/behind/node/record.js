'use strict'

// node record.js APPLICATION ANSWERS: run the application once against the base, and write down what its clients of `pg` were
// answered up to the moment at which it is quiet. Its configuration says where the base is (PGHOST and so on).

const fs = require('node:fs')
const http = require('node:http')
const Module = require('node:module')
const path = require('node:path')

const [application, target] = process.argv.slice(2)
const answers = {}
let waiting = 0

function note (text, result) {
  answers[text] = { command: result.command, rowCount: result.rowCount, rows: result.rows, fields: result.fields }
}

const load = Module._load
Module._load = function (name, ...rest) {
  const loaded = load.call(this, name, ...rest)
  if (name === 'pg' && !loaded.sfRecorded) {
    loaded.sfRecorded = true
    const query = loaded.Client.prototype.query
    loaded.Client.prototype.query = function (text, ...given) {
      waiting += 1
      const callback = given.pop()
      return query.call(this, text, ...given, (error, result) => {
        if (!error) note(text, result)
        callback(error, result)
        waiting -= 1
        setImmediate(finish)
      })
    }
  }
  return loaded
}

function finish () {
  if (waiting) return
  fs.writeFileSync(target, JSON.stringify(answers, null, 1))
  process.exit(0)
}

http.Server.prototype.listen = function () { return this }
require(path.resolve(application))
