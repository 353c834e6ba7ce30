#!/usr/bin/env bash
# HAProxy 2.6.12 (Debian bookworm's newest), `deny if { sc_http_req_rate(0) gt 5 }` over one second: a client that asks 20 times a
# second gets five requests through, and then none for as long as it goes on.
#
# Guess: the limit lets five a second through and refuses the rest: about 50 of 200 requests in 10 s.
# Seen: 5 of 200. HAProxy counts what the track rule sees, and that rule comes first, so that the deny rule can look. So refused
# requests count too, and a client above the limit stays above it. After 3 s of silence five get through again.
#
# A client that tries each refused request again at once shuts itself out.
set -eu
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || :; wait; rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 2>/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >haproxy.cfg <<'CFG'
defaults
    mode http
    timeout client 10s
frontend api
    bind unix@api.sock
    stick-table type string len 32 size 1k expire 10s store http_req_rate(1s)
    http-request track-sc0 hdr(authorization)
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 5 }
    http-request return status 200
CFG
libraries=$(echo root/usr/lib/*-linux-gnu*)
LD_LIBRARY_PATH=$libraries root/usr/sbin/haproxy -v | head -n 1
LD_LIBRARY_PATH=$libraries root/usr/sbin/haproxy -db -f haproxy.cfg >log 2>&1 &
# ask NUMBER KEY sends that many requests, 20 a second, and prints how many get through.
ask() {
    curl -s --unix-socket api.sock --rate 20/s -H "Authorization: $2" -o /dev/null -w '%{http_code}\n' "http://api/[1-$1]" | grep -c 200
}
until [ "$(ask 1 nobody)" = 1 ]; do sleep 0.2; done
seen=$(
    echo "of 200 in 10 s get through: $(ask 200 client)"
    sleep 3
    echo "after silence, of 40 in 2 s: $(ask 40 client)"
)
echo "$seen"
want='of 200 in 10 s get through: 5
after silence, of 40 in 2 s: 5'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
