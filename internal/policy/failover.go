package policy

import (
	"fmt"
	"time"
)

// Failover is what is assumed of a server that took over from another.
type Failover string

const (
	Witnessed Failover = "witnessed" // nothing is missing if all workers that lived find what they were told was written
	Strict    Failover = "strict"    // something may be missing
	Lossless  Failover = "lossless"  // nothing is missing: the former server committed nothing that its standby did not have

	unsaid Failover = "" // dispatchers judge
)

// Verdict is whether anything that a former server had committed is missing from this one.
type Verdict string

const (
	First   Verdict = "first"   // there was no former server
	Whole   Verdict = "whole"   // nothing is missing
	Missing Verdict = "missing" // something may be
	Waiting Verdict = ""        // workers are being asked
)

const (
	livesFor   = 10 * time.Second // a worker with a heartbeat so long before the last of all lived, for all that is known
	speakAfter = 2 * time.Second  // tasks/worker.go: heartbeatEvery. A worker whose row is missing has spoken by then
	speakUntil = 10 * time.Second // a worker that has not spoken by then is dead, or still writes to the former server
)

// testimony is what workers say of a new epoch.
type testimony struct {
	Found  int    `db:"found"`  // workers that find all that they were told was written
	Lacks  string `db:"lacks"`  // one that does not; "": there is none
	Silent string `db:"silent"` // one that lived and has not spoken; "": there is none
	// Former are the epochs that limits are still in, or that witnesses lived in. An argument from the last write holds for one.
	Former []string `db:"former"`
}

// verdict judges a new epoch of which workers have been asked for so long, and why.
func (f Failover) verdict(t testimony, asked time.Duration) (Verdict, string) {
	switch {
	case f == Strict:
		return Missing, "postgres.failover is strict"
	case f == Lossless:
		return Whole, "postgres.failover is lossless"
	case t.Lacks != "":
		return Missing, "worker " + t.Lacks + " does not find what it was told was written"
	case len(t.Former) > 1:
		return Missing, "Postgres failed over again before workers had been asked"
	case t.Silent == "" && asked < speakAfter || t.Silent != "" && asked < speakUntil:
		return Waiting, ""
	case t.Silent != "":
		return Missing, "worker " + t.Silent + " has not said whether it finds what it was told was written"
	case t.Found == 0:
		return Missing, "no worker that lived before can say whether it finds what it was told was written"
	}
	return Whole, fmt.Sprintf("all workers that lived, %d, find what they were told was written", t.Found)
}

// testimonySQL asks what workers say of the current epoch. Those that left before wrote so, with an older heartbeat.
const testimonySQL = `
WITH workers AS MATERIALIZED (
    SELECT id, epoch = callq.epoch() AS spoke, former, lacks,
        CASE WHEN epoch = callq.epoch() THEN lived_at ELSE heartbeat_at END AS lived_at
    FROM callq.call_workers
)
SELECT
    (SELECT count(*) FROM workers WHERE spoke AND NOT lacks) AS found,
    coalesce((SELECT min(id) FROM workers WHERE spoke AND lacks), '') AS lacks,
    coalesce((SELECT min(id) FROM workers WHERE NOT spoke AND lived_at > (SELECT max(lived_at) FROM workers) - $1::interval), '') AS silent,
    ARRAY(SELECT epoch FROM callq.call_limits WHERE epoch <> callq.epoch()
        UNION SELECT former FROM workers WHERE spoke AND former IS NOT NULL) AS former`
