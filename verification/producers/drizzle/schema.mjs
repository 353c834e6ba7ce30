import { pgSequence } from 'drizzle-orm/pg-core'

// The tables of the application. Those of callq are in calls.mjs, and drizzle-kit sees only the sequence of their id.
export const callIds = pgSequence('call_queue_id_seq', { maxValue: '9223372036854775807' })
