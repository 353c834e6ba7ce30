package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// figure is one measurement. What cannot be had on this machine is nil.
type figure struct {
	Round     int     `json:"round"`
	Peer      string  `json:"peer"`
	Measure   string  `json:"measure"`
	Calls     int     `json:"calls"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	// Per call: CPU time of this process and the peer's own, Postgres's and Redis's, and what Postgres wrote ahead.
	OwnMicros      *float64 `json:"own_us"`
	PostgresMicros *float64 `json:"postgres_us"`
	RedisMicros    *float64 `json:"redis_us"`
	WALBytes       float64  `json:"wal_bytes"`
}

// keepUsed leaves out the servers that a peer does not use: what they do when nobody asks them is not its.
func (f *figure) keepUsed(p peer) {
	if !p.redis {
		f.RedisMicros = nil
	}
	if !p.postgres {
		f.PostgresMicros, f.WALBytes = nil, 0
	}
}

// reading is what has been used up to a moment. A CPU time that cannot be had is negative.
type reading struct {
	own, postgres, redis time.Duration
	wal                  int64
}

// read reads what this process has used, with the system's own where that has one, and what the servers have.
func (s *servers) read(ctx context.Context, of system) (reading, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return reading{}, fmt.Errorf("getrusage: %w", err)
	}
	r := reading{
		own:      time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
		postgres: familyTime(s.postgres.Pid()),
		redis:    familyTime(s.redis.Pid()),
	}
	if of, ok := of.(elsewhere); ok {
		if other := familyTime(of.pid()); other < 0 {
			r.own = -1
		} else {
			r.own += other
		}
	}
	if err := s.admin.QueryRow(ctx, walSQL).Scan(&r.wal); err != nil {
		return reading{}, fmt.Errorf("read the WAL's position: %w", err)
	}
	return r, nil
}

const walSQL = `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`

func (r reading) since(before reading, calls int) figure {
	micros := func(from, to time.Duration) *float64 {
		if from < 0 || to < 0 {
			return nil
		}
		return new(float64(to-from) / float64(time.Microsecond) / float64(calls))
	}
	return figure{
		OwnMicros:      micros(before.own, r.own),
		PostgresMicros: micros(before.postgres, r.postgres),
		RedisMicros:    micros(before.redis, r.redis),
		WALBytes:       float64(r.wal-before.wal) / float64(calls),
	}
}

// clockTick is the unit of the times in /proc on every Linux (USER_HZ).
const clockTick = time.Second / 100

// familyTime is the CPU time of a process and its children, those that have ended too; negative
// where /proc does not say.
func familyTime(pid int) time.Duration {
	for {
		ended, sum := childrenTime(pid)
		own, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return -1
		}
		fields := statFields(own)
		if fields == nil || ended < 0 {
			return -1
		}
		// A child that ended meanwhile is in neither sum, or in both.
		if ticks(fields[cutime:cstime+1]...) == ended {
			return sum + ticks(fields[utime:cstime+1]...)
		}
	}
}

// childrenTime is the CPU time of a process's children: before it looked, of those that had ended, and of those that live.
func childrenTime(pid int) (ended, living time.Duration) {
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return -1, 0
	}
	fields := statFields(own)
	if fields == nil {
		return -1, 0
	}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return -1, 0
	}
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		if child := statFields(stat); child != nil && child[ppid] == strconv.Itoa(pid) {
			living += ticks(child[utime : stime+1]...)
		}
	}
	return ticks(fields[cutime : cstime+1]...), living
}

// Places in what follows the name in /proc/PID/stat; see proc_pid_stat(5).
const (
	ppid   = 1
	utime  = 11
	stime  = 12
	cutime = 13
	cstime = 14
)

// statFields are the fields behind the name, which may itself hold spaces and brackets.
func statFields(stat []byte) []string {
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= cstime {
		return nil
	}
	return fields
}

func ticks(fields ...string) time.Duration {
	var sum time.Duration
	for _, f := range fields {
		n, _ := strconv.ParseInt(f, 10, 64) // the kernel writes numbers
		sum += time.Duration(n) * clockTick
	}
	return sum
}
