// What an application has around the JavaScript of docs/producers.md, and what the page says of it.
const assert = require('assert')
const { Client } = require('pg')

async function main () {
  const client = new Client()
  await client.connect()

  // the page's block

  assert.deepStrictEqual([typeof call.id, call.duplicate], ['string', false])

  await client.query('BEGIN')
  const enqueue = 'SELECT id FROM enqueue_call(call_data => $1)'
  await client.query(enqueue, [JSON.stringify(['a', 'b'])])
  await assert.rejects(client.query(enqueue, [['a', 'b']]), { code: '22P02' })
  await client.query('ROLLBACK')
  await client.end()
}

main()
