#!/usr/bin/env bash
# pg_repack 1.4.8 (Debian 1.4.8-1+deb12u1), PostgreSQL 15 (Debian's newest): in a database with a publication of all tables,
# pg_repack ends with an error as soon as somebody updates a row meanwhile.
#
# Guess: pg_repack works beside logical replication. The table has a primary key, which is its replica identity, and others write
# to it as they do without pg_repack.
# Seen: alone it succeeds, and beside the publication too while nobody writes. What others update meanwhile it carries over to its
# new copy of the table, repack.table_N. That has the key's index but no primary key, so no replica identity, and FOR ALL TABLES has
# published it since it was made: Postgres refuses the UPDATE. The writers notice nothing; the table stays as it was.
set -eu
dir=$(mktemp -d)
chmod 755 "$dir"
trap 'kill $(jobs -p) 2>/dev/null || :; wait; rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq postgresql-15 postgresql-15-repack=1.4.8-1+deb12u1 2>/dev/null
for package in *.deb; do dpkg -x "$package" root; done
bin=$dir/root/usr/lib/postgresql/15/bin
mkdir data run
as=()
if [ "$(id -u)" = 0 ]; then # Postgres refuses to run as root
    chown nobody data run
    as=(setpriv --reuid=nobody --clear-groups)
fi
"${as[@]}" "$bin/initdb" -D data -U postgres --auth=trust --no-sync >/dev/null
"${as[@]}" "$bin/postgres" -D data -k "$dir/run" -c listen_addresses= -c wal_level=logical -c fsync=off 2>log &
export PGHOST=$dir/run PGUSER=postgres PGDATABASE=postgres
until psql -qAtc 'SELECT version()' 2>/dev/null; do sleep 0.2; done
psql -qc 'CREATE EXTENSION pg_repack' -c 'CREATE TABLE item (id bigint PRIMARY KEY, n int DEFAULT 0)' \
    -c 'INSERT INTO item SELECT generate_series(1, 200000)'
repack() {
    if "$bin/pg_repack" -t item >out 2>&1; then echo "$1: done"; else echo "$1: $(grep -m 1 ERROR out | sed 's/_[0-9]*/_N/')"; fi
}
write() {
    while [ ! -e ended ]; do psql -qc 'UPDATE item SET n = n + 1 WHERE id % 2000 = 0'; done
}
seen=$(
    repack alone
    psql -qc 'CREATE PUBLICATION everything FOR ALL TABLES'
    repack published
    write &
    repack 'published, and written to'
    touch ended
    wait
)
echo "$seen"
want='alone: done
published: done
published, and written to: ERROR: query failed: ERROR:  cannot update table "table_N" because it does not have a replica identity and publishes updates'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
