// A producer with Drizzle.
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { and, desc, eq, TransactionRollbackError } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/node-postgres'
import pg from 'pg'
import { attempts, calls, made } from './calls.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const db = drizzle(pool)

const api = process.env.API_URL
const data = (path) => ({ method: 'POST', url: api + path, json: { order: 4711 } })
const call = (path, uniqueKey) => ({ queue: 'payments', key: 'acct_42', uniqueKey, callData: data(path) })
const returned = { id: calls.id }

const steps = {
  version: () => ({ version: JSON.parse(readFileSync('node_modules/drizzle-orm/package.json')).version }),

  async create() {
    const [{ id }] = await db.insert(calls).values({
      queue: 'payments', key: 'acct_42', uniqueKey: 'order-4711',
      callData: { method: 'POST', url: api + '/create', json: { order: 4711 } },
    }).returning({ id: calls.id })
    return { id }
  },

  async bulk() {
    const many = Array.from({ length: 1000 }, (_, i) => call(`/bulk/${i}`))
    const rows = await db.insert(calls).values(many).returning(returned)
    return { ids: rows.map((row) => row.id) }
  },

  async transaction() {
    await db.transaction((tx) => tx.insert(calls).values(call('/committed')))
    await db.transaction(async (tx) => {
      await tx.insert(calls).values(call('/rolled-back'))
      tx.rollback()
    }).catch((err) => { if (!(err instanceof TransactionRollbackError)) throw err })
    return {}
  },

  async duplicates() {
    const three = [call('/duplicates/1', 'dup-1'), call('/duplicates/2', 'dup-1'), call('/duplicates/3', 'dup-2')]
    await db.insert(calls).values(three).onConflictDoNothing() // without a target: the index is on an expression
    return {}
  },

  async upsert() {
    const ids = await db.transaction(async (tx) => {
      const ids = []
      for (const path of ['/upsert/1', '/upsert/2']) {
        const [inserted] = await tx.insert(calls).values(call(path, 'up-1')).onConflictDoNothing().returning(returned)
        const [{ id }] = inserted ? [inserted] : await tx.select(returned).from(calls)
          .where(and(eq(calls.queue, 'payments'), eq(calls.uniqueKey, 'up-1')))
        ids.push(id)
      }
      return ids
    })
    return { ids }
  },

  async read(id) {
    const [{ status }] = await db.select().from(made).where(eq(made.id, id))
    const [{ result }] = await db.select().from(attempts).where(eq(attempts.callId, id)).orderBy(desc(attempts.attempt)).limit(1)
    return { status, result }
  },

  async stale(id) {
    const [{ id: loaded, ...fields }] = await db.select().from(calls).where(eq(calls.id, id))
    console.log(JSON.stringify({ loaded }))
    await once(process.stdin, 'data')
    process.stdin.unref()
    try {
      await db.update(calls).set({ ...fields, priority: 9 }).where(eq(calls.id, loaded))
    } catch (err) {
      return { sqlstate: (err.cause ?? err).code }
    }
    return { sqlstate: 'ok' }
  },

  // What `drizzle-kit push` would run with drizzle.config.js. Without a terminal it runs nothing.
  diff() {
    const { stdout } = spawnSync('npx', ['--no-install', 'drizzle-kit', 'push', '--strict', '--verbose'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] })
    const tables = [...stdout.matchAll(/(?:DROP|CREATE|ALTER) (?:TABLE|SEQUENCE) "([\w".]+)"/g)].map((found) => found[1])
    if (tables.length === 0 && !stdout.includes('No changes detected')) throw new Error(stdout)
    return { tables: [...new Set(tables)].sort() }
  },
}

const [step, ...args] = process.argv.slice(2)
console.log(JSON.stringify(await steps[step](...args)))
await pool.end()
