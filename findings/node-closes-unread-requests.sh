#!/usr/bin/env bash
# Node.js 20.20.2, express 4.21.2: a server whose event loop was busy for longer than its keepAliveTimeout (5 s) closes kept
# connections without reading the requests that wait in them.
#
# Guess: a request that comes while the loop is busy is answered once the loop is free, on whatever connection it came.
# Seen: on a new connection it is. On a connection that had been idle before, the client gets ECONNRESET, and the program never
# sees the request: when the loop goes on, the timer of the idle connection runs before the socket is read.
#
# So a busy API loses those requests of its best clients, the ones that keep connections. Nothing tells such a request from one that
# was read and then cut off.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund express@4.21.2 >/dev/null
cat >server.js <<'JS'
const app = require('express')()
app.get('/', (request, response) => { console.log('read ' + request.query.n); response.end('ok') })
app.get('/work', (request, response) => { for (const until = Date.now() + 7000; Date.now() < until;); response.end('done') })
app.listen(0, '127.0.0.1', function () { console.log('port ' + this.address().port) })
JS
cat >client.js <<'JS'
const http = require('http'), { spawn } = require('child_process')
const server = spawn(process.execPath, ['server.js'])
let said = ''
server.stdout.on('data', data => { said += data })
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const get = (port, path, agent) => new Promise(resolve => http.get({ host: '127.0.0.1', port, path, agent }, answer => {
  answer.resume()
  answer.on('end', () => resolve(answer.statusCode))
}).on('error', error => resolve(error.code)))
;(async () => {
  while (!/port \d+/.test(said)) await sleep(20)
  const port = Number(said.match(/port (\d+)/)[1])
  const kept = new http.Agent({ keepAlive: true, maxSockets: 1 })
  await get(port, '/?n=1', kept)
  const work = get(port, '/work', new http.Agent())
  await sleep(500) // the loop is busy by now
  const onKept = get(port, '/?n=2', kept), onNew = get(port, '/?n=3', new http.Agent())
  console.log(`kept connection: ${await onKept}, new connection: ${await onNew}, the work: ${await work}`)
  await sleep(200)
  console.log('the program has read: ' + said.match(/read \d/g).map(text => text.slice(5)).join(', '))
  server.kill()
  process.exit(0)
})()
JS
node --version
seen=$(node client.js)
echo "$seen"
want='kept connection: ECONNRESET, new connection: 200, the work: 200
the program has read: 1, 3'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
