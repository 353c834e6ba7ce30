#!/usr/bin/env bash
# koa-ratelimit 6.0.0 (koa 3.3.0): a client that waits as Retry-After says is refused again, and in a window of one second
# Retry-After is always 0.
#
# Guess: once Retry-After has passed, the window has ended, so the next request gets through.
# Seen: the middleware cuts the time left to whole seconds. 2.99 s to go become 2, and all of the last second becomes 0. A client
# that obeys asks again up to a second too early; with 0 it asks without any pause, until the window ends.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund koa@3.3.0 koa-ratelimit@6.0.0 >/dev/null
cat >seen.js <<'JS'
const { default: Koa } = require('koa'), ratelimit = require('koa-ratelimit')
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const obey = async seconds => {
  const app = new Koa()
  app.use(ratelimit({ driver: 'memory', db: new Map(), duration: seconds * 1000, max: 1 }))
  app.use(context => { context.body = 'ok' })
  const server = app.listen(0, '127.0.0.1')
  await new Promise(resolve => server.once('listening', resolve))
  const url = `http://127.0.0.1:${server.address().port}/`
  await fetch(url)
  const refused = await fetch(url), told = refused.headers.get('retry-after')
  await sleep(told * 1000)
  const again = await fetch(url)
  console.log(`window of ${seconds} s: ${refused.status}, Retry-After: ${told}; then ${again.status}`)
  server.close()
}
;(async () => {
  await obey(1)
  await obey(3)
  process.exit(0)
})()
JS
seen=$(node seen.js)
echo "$seen"
want='window of 1 s: 429, Retry-After: 0; then 429
window of 3 s: 429, Retry-After: 2; then 429'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
