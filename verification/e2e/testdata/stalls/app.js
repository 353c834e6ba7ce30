// An API that writes down when its program reads a request. BLOCK=3,10: its loop stands still for 3 s each 10 s. ANSWER=20: it
// answers after 20 ms; "300,0.5": lognormal. PORT, BACKLOG.
const fs = require('fs'), http = require('http')
const record = fs.openSync(process.env.ARRIVALS, 'a')
const [block, period] = (process.env.BLOCK || '0,0').split(',').map(Number)
const [median, spread] = (process.env.ANSWER || '5').split(',').map(Number)
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random())
http.createServer((request, response) => {
  fs.writeSync(record, `${Math.round((performance.timeOrigin + performance.now()) * 1e3)}000\n`)
  request.resume()
  setTimeout(() => response.end('ok'), spread ? median * Math.exp(spread * normal()) : median)
}).listen(Number(process.env.PORT), '127.0.0.1', Number(process.env.BACKLOG || 511))
if (block) setInterval(() => { for (const until = Date.now() + block * 1000; Date.now() < until;); }, period * 1000)
