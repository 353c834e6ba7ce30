// A producer with Sequelize.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { DataTypes, Sequelize } from 'sequelize'

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false })

// What a producer may set. No attribute has a default, so that callq's hold.
const settable = {
  queue: DataTypes.TEXT,
  task: DataTypes.TEXT,
  key: DataTypes.TEXT,
  callData: { type: DataTypes.JSONB, field: 'call_data' },
  cost: DataTypes.BIGINT,
  priority: DataTypes.SMALLINT,
  runAt: { type: DataTypes.DATE, field: 'run_at' },
  expiresAt: { type: DataTypes.DATE, field: 'expires_at' },
  uniqueKey: { type: DataTypes.TEXT, field: 'unique_key' },
  maxAttempts: { type: DataTypes.INTEGER, field: 'max_attempts' },
}
const id = { type: DataTypes.BIGINT, primaryKey: true, autoIncrement: true }
const Call = sequelize.define('Call', { id, ...settable }, { tableName: 'call_queue', timestamps: false })
const returning = ['id'] // else it reads the whole row back, call_data too, which a producer may not

// Calls to read, with what became of them.
const MadeCall = sequelize.define('MadeCall', {
  id,
  ...settable,
  status: DataTypes.TEXT,
  attempts: DataTypes.INTEGER,
}, { tableName: 'call_queue', timestamps: false })
const Attempt = sequelize.define('Attempt', {
  callId: { type: DataTypes.BIGINT, field: 'call_id', primaryKey: true },
  attempt: { type: DataTypes.INTEGER, primaryKey: true },
  outcome: DataTypes.TEXT,
  result: DataTypes.JSONB,
}, { tableName: 'call_attempts', timestamps: false })
MadeCall.hasMany(Attempt, { as: 'results', foreignKey: 'callId' })

const api = process.env.API_URL
const data = (path) => ({ method: 'POST', url: api + path, json: { order: 4711 } })
const call = (path, uniqueKey) => ({ queue: 'payments', key: 'acct_42', uniqueKey, callData: data(path) })

const steps = {
  version: () => ({ version: JSON.parse(readFileSync('node_modules/sequelize/package.json')).version }),

  async create() {
    const made = await Call.create({
      queue: 'payments', key: 'acct_42', uniqueKey: 'order-4711',
      callData: { method: 'POST', url: api + '/create', json: { order: 4711 } },
    }, { returning })
    return { id: made.id }
  },

  async bulk() {
    const made = await Call.bulkCreate(Array.from({ length: 1000 }, (_, i) => call(`/bulk/${i}`)), { returning })
    return { ids: made.map((row) => row.id) }
  },

  async transaction() {
    await sequelize.transaction((transaction) => Call.create(call('/committed'), { transaction, returning }))
    await sequelize.transaction(async (transaction) => {
      await Call.create(call('/rolled-back'), { transaction, returning })
      throw new Error('not paid')
    }).catch((err) => { if (err.message !== 'not paid') throw err })
    return {}
  },

  async duplicates() {
    const three = [call('/duplicates/1', 'dup-1'), call('/duplicates/2', 'dup-1'), call('/duplicates/3', 'dup-2')]
    await Call.bulkCreate(three, { ignoreDuplicates: true, returning: false })
    return {}
  },

  async upsert() {
    const ids = await sequelize.transaction(async (transaction) => {
      const ids = []
      for (const path of ['/upsert/1', '/upsert/2']) {
        await Call.bulkCreate([call(path, 'up-1')], { ignoreDuplicates: true, returning: false, transaction })
        const { id } = await Call.findOne({
          attributes: ['id'], where: { queue: 'payments', uniqueKey: 'up-1' }, transaction })
        ids.push(id)
      }
      return ids
    })
    return { ids }
  },

  async read(id) {
    const made = await MadeCall.findByPk(id, {
      include: { model: Attempt, as: 'results' }, order: [[{ model: Attempt, as: 'results' }, 'attempt', 'DESC']] })
    return { status: made.status, result: made.results[0].result }
  },

  async stale(id) {
    const made = await MadeCall.findByPk(id)
    console.log(JSON.stringify({ loaded: made.id }))
    await once(process.stdin, 'data')
    process.stdin.unref()
    made.priority = 9
    try {
      await made.save()
    } catch (err) {
      return { sqlstate: err.original?.code ?? String(err) }
    }
    return { sqlstate: 'ok' }
  },

  diff: () => ({ skip: 'sync() has no dry form, and callq migrates its tables itself' }),
}

const [step, ...args] = process.argv.slice(2)
console.log(JSON.stringify(await steps[step](...args)))
await sequelize.close()
