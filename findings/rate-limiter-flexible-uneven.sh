#!/usr/bin/env bash
# rate-limiter-flexible 11.4.0 (Node.js), execEvenly: requests that come together are not spread evenly, and all have run when
# half of the duration has passed.
#
# Guess: with 10 points per 20 s, ten requests at once run 2 s apart.
# Seen: the first runs at once. Then six run from 2 to 4 s, 0.2 to 0.7 s apart, and the last ones 5, 6.7 and 10 s after they came.
# Each waits the rest of the duration, divided by the points left plus two: no wait knows of the others. So the pauses grow from a
# tenth of the even pause to 1.7 times it.
#
# The wiki tells the formula. What the limiter protects still gets six of the ten requests in a tenth of the duration, and none in
# the latter half.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund rate-limiter-flexible@11.4.0 >/dev/null
cat >seen.js <<'JS'
const { RateLimiterMemory } = require('rate-limiter-flexible')
const limiter = new RateLimiterMemory({ points: 10, duration: 20, execEvenly: true })
const began = Date.now(), ran = []
const calls = Array.from({ length: 10 }, () => limiter.consume('client').then(() => { ran.push((Date.now() - began) / 1000) }))
Promise.all(calls).then(() => {
  for (const seconds of [1, 4.5, 8, 12]) console.log(`by ${seconds} s: ${ran.filter(at => at < seconds).length} of 10`)
  process.exit(0)
})
JS
seen=$(node seen.js)
echo "$seen"
want='by 1 s: 1 of 10
by 4.5 s: 7 of 10
by 8 s: 9 of 10
by 12 s: 10 of 10'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
