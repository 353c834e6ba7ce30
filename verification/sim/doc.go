// Package sim runs callq under virtual time, with faults, from a seed: the real dispatchers, the
// real SQL on a real Postgres whose clock is the simulation's, and workers, an API, a network,
// producers and operators that are events in one queue. One draw after the other decides
// everything, so that a seed always gives the same events. In half of the worlds the API is a
// program with one queue, which stands still at times: a request arrives when the program reads it,
// and only the answer to a later one proves that it has. At times it refuses everything, and in
// half of the worlds some requests at any time. A seed is a virtual day, with lulls that are passed
// over, or 5,000 calls in less.
//
// Only the API's own record and the tables are believed; the rules they are held against share no
// code with what they judge. Transactions do not overlap here: what locks are for is tested where
// they are.
//
//	make sim          200 seeds, and proof that it notices rules that are turned off
//	make sim-night    20,000 seeds
package sim
