// Package alarm wakes a goroutine at a moment, more exactly than Go's timers do.
package alarm

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Alarm wakes a goroutine at a moment, to some 0.1 ms. Go's own timers are up to a millisecond late in an idle process, which waits for
// them in epoll_wait, whose unit that is: a tenth of what a limit of 100 a second has between two calls. It belongs to one goroutine.
type Alarm struct {
	file *os.File // a timerfd; nil: this system has none
}

// New makes an Alarm, to be closed.
func New() Alarm {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return Alarm{}
	}
	return Alarm{os.NewFile(uintptr(fd), "timerfd")}
}

// Sleep sleeps until a moment.
func (a Alarm) Sleep(until time.Time) {
	left := time.Until(until)
	if left <= 0 {
		return
	}
	if a.file != nil {
		raw, err := a.file.SyscallConn()
		if err == nil {
			_ = raw.Control(func(fd uintptr) {
				err = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(left.Nanoseconds())}, nil)
			})
		}
		if err == nil {
			_, _ = a.file.Read(make([]byte, 8)) // how often it has gone off
		}
	}
	time.Sleep(time.Until(until))
}

// Close frees what it holds.
func (a Alarm) Close() {
	if a.file != nil {
		_ = a.file.Close()
	}
}
