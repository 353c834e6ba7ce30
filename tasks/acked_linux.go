package tasks

import (
	"net"

	"golang.org/x/sys/unix"
)

// unacked is how many bytes of what was written the other side has not acknowledged: SIOCOUTQ, see tcp(7).
func unacked(conn *net.TCPConn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); controlErr != nil {
		return 0, controlErr
	}
	return n, err
}
