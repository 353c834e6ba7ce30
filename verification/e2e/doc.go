// Package e2e tests the built program from outside: dispatchers and workers as processes of their
// own, a Postgres and a Redis that are killed and flushed under them, and an API that records
// what really arrives. Only the API's record, the tables and the exit codes are believed.
//
// Its tests are behind the build tag e2e, for they take minutes: `make exact`,
// `make faults` and `make kill` run them.
package e2e
