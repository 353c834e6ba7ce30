// record writes down when a request came and how it was answered: milliseconds since 1970, and the status.
import { openSync, writeSync } from 'node:fs'

const file = openSync(process.env.ARRIVALS, 'a')

export function record(request, response, next) {
  const at = Date.now()
  response.once('finish', () => writeSync(file, `${at} ${response.statusCode}\n`))
  next()
}
