// A producer with Knex.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import knex from 'knex'

const db = knex({ client: 'pg', connection: process.env.DATABASE_URL })

const api = process.env.API_URL
const data = (path) => ({ method: 'POST', url: api + path, json: { order: 4711 } })
const call = (path, unique_key) => ({ queue: 'payments', key: 'acct_42', unique_key, call_data: data(path) })

const steps = {
  version: () => ({ version: JSON.parse(readFileSync('node_modules/knex/package.json')).version }),

  async create() {
    const [{ id }] = await db('call_queue').insert({
      queue: 'payments', key: 'acct_42', unique_key: 'order-4711',
      call_data: { method: 'POST', url: api + '/create', json: { order: 4711 } },
    }, 'id')
    return { id }
  },

  async bulk() {
    const rows = await db('call_queue').insert(Array.from({ length: 1000 }, (_, i) => call(`/bulk/${i}`)), 'id')
    return { ids: rows.map((row) => row.id) }
  },

  async transaction() {
    await db.transaction((tx) => tx('call_queue').insert(call('/committed')))
    await db.transaction(async (tx) => {
      await tx('call_queue').insert(call('/rolled-back'))
      throw new Error('not paid')
    }).catch((err) => { if (err.message !== 'not paid') throw err })
    return {}
  },

  async duplicates() {
    const three = [call('/duplicates/1', 'dup-1'), call('/duplicates/2', 'dup-1'), call('/duplicates/3', 'dup-2')]
    await db('call_queue').insert(three).onConflict().ignore()
    return {}
  },

  async upsert() {
    const ids = await db.transaction(async (tx) => {
      const ids = []
      for (const path of ['/upsert/1', '/upsert/2']) {
        await tx('call_queue').insert(call(path, 'up-1')).onConflict().ignore()
        const { id } = await tx('call_queue').first('id').where({ queue: 'payments', unique_key: 'up-1' })
        ids.push(id)
      }
      return ids
    })
    return { ids }
  },

  async read(id) {
    const { status } = await db('call_queue').first('status').where({ id })
    const { result } = await db('call_attempts').first('result').where({ call_id: id }).orderBy('attempt', 'desc')
    return { status, result }
  },

  async stale(id) {
    const { id: loaded, ...fields } = await db('call_queue').first().where({ id })
    console.log(JSON.stringify({ loaded }))
    await once(process.stdin, 'data')
    process.stdin.unref()
    try {
      await db('call_queue').where({ id: loaded }).update({ ...fields, priority: 9 })
    } catch (err) {
      return { sqlstate: err.code }
    }
    return { sqlstate: 'ok' }
  },

  diff: () => ({ skip: 'it has no models' }),
}

const [step, ...args] = process.argv.slice(2)
console.log(JSON.stringify(await steps[step](...args)))
await db.destroy()
