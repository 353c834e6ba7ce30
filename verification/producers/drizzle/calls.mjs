import { bigint, integer, jsonb, pgTable, pgView, smallint, text, timestamp } from 'drizzle-orm/pg-core'

// What a producer may set. No column has a default, so that callq's hold.
const settable = () => ({
  queue: text(),
  task: text(),
  key: text(),
  callData: jsonb('call_data'),
  cost: bigint({ mode: 'number' }),
  priority: smallint(),
  runAt: timestamp('run_at', { withTimezone: true, mode: 'string' }),
  expiresAt: timestamp('expires_at', { withTimezone: true, mode: 'string' }),
  uniqueKey: text('unique_key'),
  maxAttempts: integer('max_attempts'),
})
export const calls = pgTable('call_queue', {
  id: bigint({ mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
  ...settable(),
})

// Calls to read, with what became of them. A view is never written to.
export const made = pgView('call_queue', {
  id: bigint({ mode: 'number' }),
  ...settable(),
  status: text(),
  attempts: integer(),
}).existing()
export const attempts = pgView('call_attempts', {
  callId: bigint('call_id', { mode: 'number' }),
  attempt: integer(),
  outcome: text(),
  result: jsonb(),
}).existing()
