'use strict'

// express-admin as it is, over the environment's database, sessions and uploads.

const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const express = require('express')
const session = require('express-session')
const admin = require('express-admin')
const { Client } = require('pg')
const statefork = require(process.env.STATEFORK_HOOKS)

const settings = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'admin-')), 'settings.json')
const client = new Client({ database: 'admin' })

const hooks = { uploads: () => statefork.current().store('media').path }

// Sessions live in the database, so that they are reset and forked with it.
class Sessions extends session.Store {
  get (sid, done) {
    client.query('SELECT data FROM web.sessions WHERE sid = $1', [sid], (error, found) => {
      done(error, found && found.rows[0] ? JSON.parse(found.rows[0].data) : null)
    })
  }

  set (sid, data, done) {
    const save = 'INSERT INTO web.sessions VALUES ($1, $2) ON CONFLICT (sid) DO UPDATE SET data = excluded.data'
    client.query(save, [sid, JSON.stringify(data)], (error) => done(error))
  }

  destroy (sid, done) {
    client.query('DELETE FROM web.sessions WHERE sid = $1', [sid], (error) => done(error))
  }
}

const site = express()
site.use('/upload', (request, response, next) => express.static(hooks.uploads())(request, response, next))

function serve () {
  site.use(admin({
    config: {
      pg: { database: 'admin' },
      admin: {
        settings,
        session: { name: 'admin', secret: 'of the tests', saveUninitialized: false, resave: true, store: new Sessions() },
        get upload () { return statefork.isBound() ? hooks.uploads() : os.devNull },
        set upload (place) {}
      }
    },
    settings: JSON.parse(fs.readFileSync(path.join(__dirname, 'settings.json'))),
    users: { admin: { name: 'admin', pass: 'admin-of-the-tests' } }
  }))
  site.listen(0)
}

module.exports = { site, client, hooks, serve }
if (require.main !== module && !process.env.STATEFORK_SITE) serve() // while it is recorded
